#include "autograd/loss.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "autograd/cuda/loss.h"
#include "core/cuda/backend.h"
#include "core/cuda/elementwise.h"
#include "core/elementwise.h"
#include "core/gemm.h"
#include "core/threads.h"
#include "core/vector_math.h"

namespace linnet {
namespace {

// Logits held at a time: 16 MiB in f32.
constexpr int64_t kChunkElements = int64_t{1} << 22;
// On a GPU 64 MiB; of wide tables 4,096 tokens, but at most 512 MiB (half of it in bf16): each
// chunk reads and rewrites the table's gradient, for a few hundred tokens more work than their
// products.
constexpr int64_t kCudaChunkElements = int64_t{1} << 24;
constexpr int64_t kCudaChunkTokens = 4096;
constexpr int64_t kCudaMostElements = int64_t{1} << 27;

int64_t tokens_of_chunk(int64_t classes, bool on_gpu) {
  const int64_t columns = std::max<int64_t>(1, classes);
  const int64_t fit = on_gpu ? std::max(kCudaChunkElements / columns,
                                        std::min(kCudaChunkTokens, kCudaMostElements / columns))
                             : kChunkElements / columns;
  return std::max<int64_t>(64, fit);
}

void check_targets(const Tensor& targets, int64_t tokens, int64_t classes) {
  require(targets.dtype() == DType::i32 && targets.elements() == tokens, "cross entropy: ", tokens,
          " rows but targets ", targets.shape(), " ", name_of(targets.dtype()));
  if (on_cuda(targets)) return;  // a check would mean waiting: such targets give NaN
  const int32_t* target = targets.data<int32_t>();
  for (int64_t i = 0; i < tokens; ++i) {
    require(target[i] >= -1 && target[i] < classes, "cross entropy: target ", target[i], " of row ",
            i, " is outside [0, ", classes, ")");
  }
}

// The token count of hidden [.., E] for the output table weight [V, E] and the bias [V], if any.
int64_t check_output(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                     const Tensor& bias) {
  require(weight.shape().rank() == 2 && weight.size(1) > 0 && hidden.size(-1) == weight.size(1),
          "output cross entropy: hidden ", hidden.shape(), " does not fit the table ",
          weight.shape());
  require(!bias.defined() || bias.shape() == Shape({weight.size(0)}), "output cross entropy: bias ",
          bias.shape(), " does not fit the table ", weight.shape());
  const int64_t tokens = hidden.elements() / weight.size(1);
  check_targets(targets, tokens, weight.size(0));
  return tokens;
}

// Exponentials summed in the compute type before they are added up in double.
constexpr int64_t kSumBlock = 1024;

// The largest of count > 0 values; NaN among them may or may not be returned.
template <typename T>
Compute<T> largest(const T* values, int64_t count) {
  using C = Compute<T>;
  C top = static_cast<C>(values[0]);
#pragma omp simd reduction(max : top)
  for (int64_t i = 1; i < count; ++i) {
    const C value = static_cast<C>(values[i]);
    top = value > top ? value : top;
  }
  return top;
}

template <typename T>
void softmax_rows_typed(T* logits, const int32_t* targets, int64_t rows, int64_t classes,
                        double* losses, bool gradient) {
  using C = Compute<T>;
  parallel_for(
      rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, classes)),
      [&](int64_t begin, int64_t end) {
        std::vector<C> row(static_cast<size_t>(classes));
        for (int64_t r = begin; r < end; ++r) {
          T* line = logits + r * classes;
          losses[r] = 0;
          if (targets[r] < 0) {
            if (gradient) std::fill(line, line + classes, T(0.0f));
            continue;
          }
          const C top = largest(line, classes);
          const C wanted = static_cast<C>(line[targets[r]]);
          C* powers = row.data();
          for (int64_t c = 0; c < classes; ++c) {
            powers[c] = vector_exp(static_cast<C>(line[c]) - top);
          }
          double total = 0;
          for (int64_t block = 0; block < classes; block += kSumBlock) {
            const C* part = powers + block;
            total += static_cast<double>(simd_sum<C>(std::min(classes - block, kSumBlock),
                                                     [part](int64_t c) { return part[c]; }));
          }
          losses[r] = std::log(total) + static_cast<double>(top) - static_cast<double>(wanted);
          if (!gradient) continue;
          const C factor = static_cast<C>(1.0 / total);
          for (int64_t c = 0; c < classes; ++c) {
            line[c] = static_cast<T>(powers[c] * factor);
          }
          line[targets[r]] = static_cast<T>(static_cast<C>(line[targets[r]]) - C(1));
        }
      });
}

// Loss (f64) of each row of logits [rows, classes]; with `gradient`, replaces the row by
// softmax - onehot (0 for unscored rows).
void softmax_rows(const Tensor& logits, const Tensor& targets, const Tensor& losses,
                  bool gradient) {
  if constexpr (kCuda) {
    if (on_cuda(logits)) return cuda::softmax_rows(logits, targets, losses, gradient);
  }
  dispatch_floating(logits.dtype(), [&](auto zero) {
    using T = decltype(zero);
    softmax_rows_typed(logits.data<T>(), targets.data<int32_t>(), logits.size(0), logits.size(1),
                       losses.data<double>(), gradient);
  });
}

// Gradients of the summed loss: dhidden is overwritten, dweight and dbias are added to. Undefined
// where none are wanted, dbias also where there is no bias.
struct OutputGradients {
  Tensor dhidden, dweight, dbias;
};

// Runs over chunks of tokens.
void chunked(const Tensor& hidden, const Tensor& weight, const Tensor& bias, const Tensor& targets,
             const Tensor& losses, const OutputGradients& to) {
  const int64_t width = weight.size(1);
  const int64_t classes = weight.size(0);
  const Tensor rows = hidden.reshape({hidden.elements() / width, width});
  const int64_t tokens = rows.size(0);
  const int64_t chunk = tokens_of_chunk(classes, on_cuda(hidden));
  const Tensor buffer =
      Tensor::empty({std::min(chunk, tokens), classes}, hidden.dtype(), hidden.device());
  const bool gradient = to.dhidden.defined();
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t end = std::min(tokens, begin + chunk);
    const Tensor logits = buffer.rows(0, end - begin);
    const Tensor part = rows.rows(begin, end);
    if (bias.defined()) {
      gemm_bias(part, Transpose::no, weight, Transpose::yes, logits, bias);
    } else {
      gemm(part, Transpose::no, weight, Transpose::yes, logits);
    }
    softmax_rows(logits, targets.slice(begin, {end - begin}), losses.rows(begin, end), gradient);
    if (!gradient) continue;
    gemm(logits, Transpose::no, weight, Transpose::no, to.dhidden.rows(begin, end));
    if (to.dbias.defined()) {
      gemm_row_sums(logits, part, to.dweight, 1, to.dbias, true);
    } else {
      gemm(logits, Transpose::yes, part, Transpose::no, to.dweight, 1, 1);
    }
  }
}

// The sum of f64 losses as a scalar beside them.
Tensor total(const Tensor& losses) {
  if constexpr (kCuda) {
    if (on_cuda(losses)) {
      Tensor to = Tensor::empty({}, DType::f64, losses.device());
      cuda::sum(losses, to);
      return to;
    }
  }
  const double* from = losses.data<double>();
  return Tensor::full({}, std::accumulate(from, from + losses.elements(), 0.0), DType::f64);
}

// to *= factor, one f64 element beside it.
void scale_by(const Tensor& to, const Tensor& factor) {
  if constexpr (kCuda) {
    if (on_cuda(to)) return cuda::scale_into(to, factor);
  }
  scale_into(to, factor.item());
}

}  // namespace

Variable output_cross_entropy(const Variable& hidden, const Variable& weight, const Tensor& targets,
                              const Variable& bias) {
  const Tensor bias_values = bias.defined() ? bias.value() : Tensor();
  const int64_t tokens = check_output(hidden.value(), weight.value(), targets, bias_values);
  const Device device = hidden.value().device();
  const Tensor losses = Tensor::empty({tokens}, DType::f64, device);
  OutputGradients saved;
  if (needs_grad({hidden, weight, bias})) {
    const DType wide = weight.dtype() == DType::f64 ? DType::f64 : DType::f32;
    saved.dhidden = Tensor::empty({tokens, weight.size(1)}, hidden.dtype(), device);
    saved.dweight = Tensor::zeros(weight.shape(), wide, device);
    if (bias.defined()) saved.dbias = Tensor::zeros(bias.shape(), wide, device);
  }
  chunked(hidden.value(), weight.value(), bias_values, targets, losses, saved);
  return record("output_cross_entropy", total(losses), {hidden, weight, bias},
                [saved, shape = hidden.shape()](Gradients& gradients) {
                  scale_by(saved.dhidden, gradients.output());
                  gradients.add(0, saved.dhidden.reshape(shape));
                  scale_by(saved.dweight, gradients.output());
                  gradients.add(1, saved.dweight);
                  if (!saved.dbias.defined()) return;
                  scale_by(saved.dbias, gradients.output());
                  gradients.add(2, saved.dbias);
                });
}

Tensor output_token_losses(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                           const Tensor& bias) {
  const int64_t tokens = check_output(hidden, weight, targets, bias);
  const Tensor losses = Tensor::empty({tokens}, DType::f64, hidden.device());
  chunked(hidden, weight, bias, targets, losses, {});
  return losses;
}

Variable sum_of_losses(const std::vector<Variable>& losses) {
  const Tensor sum = Tensor::zeros({}, DType::f64, losses.at(0).value().device());
  for (const Variable& loss : losses) add_into(sum, loss.value());
  return record("sum_of_losses", sum, losses, [count = losses.size()](Gradients& gradients) {
    for (size_t i = 0; i < count; ++i) gradients.add(i, gradients.output());
  });
}

Variable cross_entropy(const Variable& logits, const Tensor& targets) {
  require(logits.shape().rank() == 2, "cross_entropy: expected logits [N, classes], got ",
          logits.shape());
  const int64_t rows = logits.size(0);
  check_targets(targets, rows, logits.size(1));
  const Tensor losses = Tensor::empty({rows}, DType::f64, logits.value().device());
  softmax_rows(logits.value(), targets, losses, false);
  return record("cross_entropy", total(losses), {logits},
                [targets, losses, values = logits.value()](Gradients& gradients) {
                  const Tensor dlogits = values.clone();  // the caller may still read the logits
                  softmax_rows(dlogits, targets, losses, true);
                  scale_by(dlogits, gradients.output());
                  gradients.add(0, dlogits);
                });
}

}  // namespace linnet
