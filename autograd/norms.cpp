#include "autograd/norms.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "autograd/cuda/norms.h"
#include "autograd/dropout_check.h"
#include "core/cuda/backend.h"
#include "core/elementwise.h"
#include "core/threads.h"
#include "core/vector_math.h"

namespace linnet {
namespace {

// Rows whose gain and bias gradients are summed together before the fixed-order final sum.
constexpr int64_t kRowBlock = 64;

// Per row: y = (x - mean) * rstd; mean is 0 except for LayerNorm. Statistics in double for f64,
// else float.
struct Saved {
  Tensor x, gain, mean, rstd;
};

template <typename C, typename T>
void row_statistics(const T* x, int64_t channels, const NormSpec& spec, C& mean, C& rstd) {
  const C count = static_cast<C>(channels);
  const C epsilon = static_cast<C>(spec.epsilon);
  mean = 0;
  if (spec.kind == NormKind::layer) {
    mean = simd_sum<C>(channels, [x](int64_t c) { return static_cast<C>(x[c]); }) / count;
  }
  const C m = mean;
  const C square = simd_sum<C>(channels,
                               [x, m](int64_t c) {
                                 const C centred = static_cast<C>(x[c]) - m;
                                 return centred * centred;
                               }) /
                   count;
  rstd = spec.kind == NormKind::scale ? C(1) / std::max(std::sqrt(square), epsilon)
                                      : C(1) / std::sqrt(square + epsilon);
}

// `channels` values of a gain or bias in the compute type: a single one repeated, `missing` where
// there is none. Those of the tensor itself where it has them so.
template <typename T>
class Row {
 public:
  Row(const Tensor& values, int64_t channels, Compute<T> missing) {
    if constexpr (std::is_same_v<T, Compute<T>>) {
      if (values.defined() && values.elements() == channels) {
        data_ = values.data<T>();
        return;
      }
    }
    own_.assign(static_cast<size_t>(channels), missing);
    data_ = own_.data();
    if (!values.defined()) return;
    const T* from = values.data<T>();
    for (int64_t c = 0; c < channels; ++c) {
      own_[static_cast<size_t>(c)] = static_cast<Compute<T>>(from[values.elements() == 1 ? 0 : c]);
    }
  }
  Row(const Row&) = delete;
  Row& operator=(const Row&) = delete;
  const Compute<T>* data() const { return data_; }

 private:
  std::vector<Compute<T>> own_;
  const Compute<T>* data_;
};

// The sum of a residual and of a branch; without a branch the residual itself.
struct Summands {
  Tensor residual, branch;
  DropoutSpec dropout;

  // As an operation of its own.
  Tensor sum() const {
    if (!branch.defined()) return residual;
    return residual_dropout(Variable(residual), Variable(branch), dropout).value();
  }
};

struct Normed {
  Tensor sum, y;
};
Normed forward(const Summands& summands, const Tensor& gain, const Tensor& bias,
               const NormSpec& spec, Saved* saved) {
  const Tensor& like = summands.residual;
  const int64_t channels = like.size(-1);
  const int64_t gains = spec.kind == NormKind::scale ? 1 : channels;
  require(channels > 0, "norm: the last dimension of ", like.shape(), " is empty");
  require((!gain.defined() || gain.elements() == gains) &&
              (!bias.defined() || (bias.elements() == channels && spec.kind == NormKind::layer)),
          "norm: gain or bias does not fit ", like.shape());
  const int64_t rows = like.elements() / channels;
  const Tensor y = Tensor::empty(like.shape(), like.dtype(), like.device());
  const DType wide = like.dtype() == DType::f64 ? DType::f64 : DType::f32;
  Tensor mean, rstd;
  if (saved != nullptr || on_cuda(like)) {
    mean = Tensor::empty({rows}, wide, like.device());
    rstd = Tensor::empty({rows}, wide, like.device());
  }
  const bool at_once = kCuda && on_cuda(like) && summands.branch.defined();
  const Tensor x =
      at_once ? Tensor::empty(like.shape(), like.dtype(), like.device()) : summands.sum();
  if (saved != nullptr) *saved = {x, gain, mean, rstd};
  if constexpr (kCuda) {
    if (at_once) {
      cuda::residual_norm_forward(like, summands.branch, summands.dropout, gain, bias, spec, x, y,
                                  mean, rstd);
      return {x, y};
    }
    if (on_cuda(x)) {
      cuda::norm_forward(x, gain, bias, spec, y, mean, rstd);
      return {x, y};
    }
  }
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const T* from = x.data<T>();
    const Row<T> gain_values(gain, channels, C(1)), bias_values(bias, channels, C(0));
    const C* gain_row = gain_values.data();
    const C* bias_row = bias_values.data();
    T* to = y.data<T>();
    C* means = saved != nullptr ? mean.data<C>() : nullptr;
    C* rstds = saved != nullptr ? rstd.data<C>() : nullptr;
    parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = from + r * channels;
        T* out = to + r * channels;
        C m, s;
        row_statistics(row, channels, spec, m, s);
        if (means != nullptr) {
          means[r] = m;
          rstds[r] = s;
        }
        for (int64_t c = 0; c < channels; ++c) {
          const C normed = (static_cast<C>(row[c]) - m) * s;
          out[c] = static_cast<T>(normed * gain_row[c] + bias_row[c]);
        }
      }
    });
  });
  return {x, y};
}

// The working rows of backward, one row at a time, in the compute type.
template <typename C>
struct RowScratch {
  explicit RowScratch(int64_t channels)
      : normed(static_cast<size_t>(channels)), through(static_cast<size_t>(channels)) {}
  std::vector<C> normed, through;  // normalised input; dy * gain
};

// One row of dx, and its share of the gradients of gain (one or `channels` values) and bias.
template <typename T, typename C>
void backward_row(const T* x, const T* dy, const C* gain, int64_t channels, C mean, C rstd,
                  const NormSpec& spec, const T* dsum, T* dx, C* dgain, C* dbias,
                  RowScratch<C>& scratch) {
  C* normed = scratch.normed.data();
  C* through = scratch.through.data();
  for (int64_t c = 0; c < channels; ++c) {
    normed[c] = (static_cast<C>(x[c]) - mean) * rstd;
    through[c] = static_cast<C>(dy[c]) * gain[c];
  }
  if (dgain != nullptr && spec.kind == NormKind::scale) {
    dgain[0] += simd_sum<C>(channels, [=](int64_t c) { return static_cast<C>(dy[c]) * normed[c]; });
  } else if (dgain != nullptr) {
    for (int64_t c = 0; c < channels; ++c) dgain[c] += static_cast<C>(dy[c]) * normed[c];
  }
  if (dbias != nullptr) {
    for (int64_t c = 0; c < channels; ++c) dbias[c] += static_cast<C>(dy[c]);
  }
  const C count = static_cast<C>(channels);
  C dot = simd_sum<C>(channels, [=](int64_t c) { return through[c] * normed[c]; }) / count;
  C total = 0;
  if (spec.kind == NormKind::layer) {
    total = simd_sum<C>(channels, [=](int64_t c) { return through[c]; }) / count;
  }
  // Where ScaleNorm's floor is active the divisor is constant.
  if (spec.kind == NormKind::scale && rstd >= C(1) / static_cast<C>(spec.epsilon)) dot = 0;
  if (dsum == nullptr) {
    for (int64_t c = 0; c < channels; ++c) {
      dx[c] = static_cast<T>(rstd * (through[c] - total - normed[c] * dot));
    }
  } else {
    for (int64_t c = 0; c < channels; ++c) {
      dx[c] =
          static_cast<T>(static_cast<C>(dsum[c]) + rstd * (through[c] - total - normed[c] * dot));
    }
  }
}

void accumulate(Gradients& gradients, size_t input, const Tensor& partial) {
  const GradientTarget target = gradients.target(input);
  if (target.mode == GradientWrite::ignore) return;
  sum_rows(partial, target.buffer.reshape({target.buffer.elements()}),
           target.mode == GradientWrite::accumulate);
}

// Gradients of the sum (plus dsum where defined) and of what was added to it.
struct SumGradients {
  Tensor dx, dbranch;
};
// Without a kernel that makes both at once.
SumGradients through_dropout(const Tensor& dx, const DropoutSpec& dropped) {
  return {dx, dropout(Variable(dx), dropped).value()};
}

// Adds the gradients of gain and bias to inputs `gain_input`, `gain_input + 1`.
SumGradients backward(Gradients& gradients, const Saved& saved, const NormSpec& spec,
                      const Tensor& dy, const Tensor& dsum, const DropoutSpec& dropped,
                      size_t gain_input) {
  const Tensor& x = saved.x;
  const bool gain_wanted = gradients.wanted(gain_input);
  const bool bias_wanted = gradients.wanted(gain_input + 1);
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      const cuda::NormGradients found = cuda::norm_backward(
          x, saved.gain, saved.mean, saved.rstd, spec, dy, dsum, dropped, gain_wanted, bias_wanted);
      if (gain_wanted) accumulate(gradients, gain_input, found.gain_partial);
      if (bias_wanted) accumulate(gradients, gain_input + 1, found.bias_partial);
      return {found.dx, found.dbranch};
    }
  }
  const int64_t channels = x.size(-1);
  const int64_t gains = spec.kind == NormKind::scale ? 1 : channels;
  const int64_t rows = x.elements() / channels;
  const int64_t blocks = std::max<int64_t>(1, (rows + kRowBlock - 1) / kRowBlock);
  const Tensor dx = Tensor::empty(x.shape(), x.dtype(), x.device());
  const DType wide = saved.mean.dtype();
  const Tensor gain_partial = Tensor::zeros({gain_wanted ? blocks : 0, gains}, wide);
  const Tensor bias_partial = Tensor::zeros({bias_wanted ? blocks : 0, channels}, wide);
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const Row<T> gain(saved.gain, channels, C(1));
    const T* xs = x.data<T>();
    const T* dys = dy.data<T>();
    const T* dsums = dsum.defined() ? dsum.data<T>() : nullptr;
    T* dxs = dx.data<T>();
    const C* mean = saved.mean.data<C>();
    const C* rstd = saved.rstd.data<C>();
    C* dgains = gain_wanted ? gain_partial.data<C>() : nullptr;
    C* dbiases = bias_wanted ? bias_partial.data<C>() : nullptr;
    parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
      RowScratch<C> scratch(channels);
      for (int64_t block = begin; block < end; ++block) {
        C* dgain = dgains == nullptr ? nullptr : dgains + block * gains;
        C* dbias = dbiases == nullptr ? nullptr : dbiases + block * channels;
        const int64_t last = std::min(rows, (block + 1) * kRowBlock);
        for (int64_t r = block * kRowBlock; r < last; ++r) {
          const int64_t at = r * channels;
          backward_row<T, C>(xs + at, dys + at, gain.data(), channels, mean[r], rstd[r], spec,
                             dsums == nullptr ? nullptr : dsums + at, dxs + at, dgain, dbias,
                             scratch);
        }
      }
    });
  });
  if (gain_wanted) accumulate(gradients, gain_input, gain_partial);
  if (bias_wanted) accumulate(gradients, gain_input + 1, bias_partial);
  return through_dropout(dx, dropped);
}

Tensor value_or_undefined(const Variable& v) {
  return v.defined() ? v.value() : Tensor();
}

}  // namespace

Variable norm(const Variable& x, const Variable& gain, const Variable& bias, const NormSpec& spec) {
  Saved saved;
  const bool recorded = needs_grad({x, gain, bias});
  const Tensor y = forward({x.value(), {}, {}}, value_or_undefined(gain), value_or_undefined(bias),
                           spec, recorded ? &saved : nullptr)
                       .y;
  return record("norm", y, {x, gain, bias}, [saved, spec](Gradients& gradients) {
    gradients.add(0, backward(gradients, saved, spec, gradients.output(), {}, {}, 1).dx);
  });
}

std::pair<Variable, Variable> residual_norm(const Variable& residual, const Variable& branch,
                                            const DropoutSpec& dropout, const Variable& gain,
                                            const Variable& bias, const NormSpec& spec) {
  const Summands summands{residual.value(), value_or_undefined(branch), dropout};
  if (branch.defined()) {
    require(residual.shape() == branch.shape() && residual.dtype() == branch.dtype(),
            "residual_norm: residual ", residual.shape(), ", branch ", branch.shape());
    if (dropout.probability != 0) require_droppable(branch.value(), dropout);
  }
  Saved saved;
  const bool recorded = needs_grad({residual, branch, gain, bias});
  const Normed made = forward(summands, value_or_undefined(gain), value_or_undefined(bias), spec,
                              recorded ? &saved : nullptr);
  const DropoutSpec dropped = branch.defined() ? dropout : DropoutSpec{};
  const std::vector<Variable> results =
      record_many("residual_norm", {made.sum, made.y}, {residual, branch, gain, bias},
                  [saved, spec, dropped](Gradients& gradients) {
                    const Tensor dsum = gradients.has_output(0) ? gradients.output(0) : Tensor();
                    const SumGradients found = gradients.has_output(1)
                                                   ? backward(gradients, saved, spec,
                                                              gradients.output(1), dsum, dropped, 2)
                                                   : through_dropout(dsum, dropped);
                    gradients.add(0, found.dx);
                    gradients.add(1, found.dbranch);
                  });
  return {results[0], results[1]};
}

}  // namespace linnet
