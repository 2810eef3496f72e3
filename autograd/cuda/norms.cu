// LayerNorm, RMSNorm and ScaleNorm, alone and of a residual sum, forward and backward: a warp for
// each row.
#include "autograd/cuda/norms.h"

#include "autograd/cuda/dropout_rows.h"
#include "core/cuda/block_reduce.h"
#include "core/cuda/column_sums.h"

namespace linnet::cuda {
namespace {

constexpr int kWarps = 4;  // per block

// Kind and floor, as kernels take them.
struct NormRule {
  NormKind kind;
  float epsilon;
};

__device__ __forceinline__ int64_t row_of_warp() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
}

template <int count, typename T>
__device__ __forceinline__ void load_gain(const T* gain, NormKind kind, int64_t channel,
                                          float (&values)[count]) {
  if (gain != nullptr && kind != NormKind::scale) return load_vector(gain + channel, values);
  const float same = gain == nullptr ? 1.0f : load(gain);
#pragma unroll
  for (int i = 0; i < count; ++i) values[i] = same;
}

// What the forward kernels take.
template <typename T>
struct NormRows {
  const T *gain, *bias;
  int64_t rows, channels;
  bool in_vectors;
  NormRule rule;
  T* y;
  float *means, *rstds;

  // Calls visit(c, together) for this thread's channels of a row.
  template <typename Visit>
  __device__ __forceinline__ void each(const Visit& visit) const {
    visit_row<T, 32>(channels, threadIdx.x % 32, in_vectors, visit);
  }
};

// This thread's share in the sum of (x - mean)^2 over a row.
template <typename T>
__device__ __forceinline__ float square_of(const NormRows<T>& a, const T* x, float mean) {
  float square = 0;
  a.each([&](int64_t c, auto together) {
    float values[together()];
    load_vector(x + c, values);
#pragma unroll
    for (int i = 0; i < together(); ++i) {
      const float centred = values[i] - mean;
      square = fmaf(centred, centred, square);
    }
  });
  return square;
}

// y of a row x, whose (x - mean)^2 have the sum `square`.
template <typename T>
__device__ __forceinline__ void write_row(const NormRows<T>& a, int64_t row, const T* x, float mean,
                                          float square) {
  square /= static_cast<float>(a.channels);
  float rstd;
  if (a.rule.kind == NormKind::scale) {
    const float root = sqrtf(square);
    rstd = 1.0f / (root < a.rule.epsilon ? a.rule.epsilon : root);  // NaN stays
  } else {
    rstd = 1.0f / sqrtf(square + a.rule.epsilon);
  }
  if (threadIdx.x % 32 == 0) {
    a.means[row] = mean;
    a.rstds[row] = rstd;
  }
  T* to = a.y + row * a.channels;
  a.each([&](int64_t c, auto together) {
    float values[together()], gains[together()], plus[together()] = {};
    load_vector(x + c, values);
    load_gain(a.gain, a.rule.kind, c, gains);
    if (a.bias != nullptr) load_vector(a.bias + c, plus);
#pragma unroll
    for (int i = 0; i < together(); ++i) {
      values[i] = fmaf((values[i] - mean) * rstd, gains[i], plus[i]);
    }
    store_vector(to + c, values);
  });
}

template <typename T>
__global__ void norm_rows(const T* x, NormRows<T> a) {
  const int64_t row = row_of_warp();
  if (row >= a.rows) return;  // a whole warp
  const T* from = x + row * a.channels;
  float mean = 0;
  if (a.rule.kind == NormKind::layer) {
    a.each([&](int64_t c, auto together) {
      float values[together()];
      load_vector(from + c, values);
#pragma unroll
      for (int i = 0; i < together(); ++i) mean += values[i];
    });
    mean = warp_sum(mean) / static_cast<float>(a.channels);
  }
  write_row(a, row, from, mean, warp_sum(square_of(a, from, mean)));
}

// Stores values and leaves in them what is stored.
template <int count>
__device__ __forceinline__ void store_rounded(float* to, float (&values)[count]) {
  store_vector(to, values);
}
template <int count>
__device__ __forceinline__ void store_rounded(kernel_bf16* to, float (&values)[count]) {
  store_vector(to, values);
#pragma unroll
  for (int i = 0; i < count; ++i) values[i] = __bfloat162float(__float2bfloat16(values[i]));
}

// sum = residual + branch, of which dropout keeps a part, and y = norm(sum), with the bits of
// dropout_rows and norm_rows: what a compiler may fuse is fused in all of them.
template <typename T, bool drops>
__global__ void residual_norm_rows(const T* residual, const T* branch, DropoutDraw draw, T* sum,
                                   NormRows<T> a) {
  const int64_t row = row_of_warp();
  if (row >= a.rows) return;  // a whole warp
  const T *onto = residual + row * a.channels, *from = branch + row * a.channels;
  T* to = sum + row * a.channels;
  [[maybe_unused]] const DropoutFactors drawn = factors_of<drops>(draw, row);
  const bool centres = a.rule.kind == NormKind::layer;
  float total = 0;  // of the values, or of their squares
  a.each([&](int64_t c, auto together) {
    float values[together()], added[together()];
    load_vector(onto + c, values);
    load_vector(from + c, added);
    if constexpr (drops) {
      float factors[together()];
      drawn.at(c, factors);
#pragma unroll
      for (int i = 0; i < together(); ++i) values[i] = fmaf(added[i], factors[i], values[i]);
    } else {
#pragma unroll
      for (int i = 0; i < together(); ++i) values[i] += added[i];
    }
    store_rounded(to + c, values);
    if (centres) {
#pragma unroll
      for (int i = 0; i < together(); ++i) total += values[i];
    } else {
#pragma unroll
      for (int i = 0; i < together(); ++i) total = fmaf(values[i], values[i], total);
    }
  });
  total = warp_sum(total);
  // From here on every thread reads what it has written itself.
  float mean = 0;
  if (centres) {
    mean = total / static_cast<float>(a.channels);
    total = warp_sum(square_of<T>(a, to, mean));
  }
  write_row<T>(a, row, to, mean, total);
}

// dx of a row, plus dsum; with row_gain, the row's share in the gradient of a single gain. With
// dropout also dbranch, the part of dx that it lets through.
template <typename T, bool drops>
__global__ void norm_backward_rows(const T* x, const T* gain, const T* dy, const T* dsum,
                                   const float* means, const float* rstds, int64_t rows,
                                   int64_t channels, bool in_vectors, NormRule rule, T* dx,
                                   float* row_gain, DropoutDraw draw, T* dbranch) {
  const int64_t row = row_of_warp();
  if (row >= rows) return;
  const T* from = x + row * channels;
  const T* d = dy + row * channels;
  const float mean = means[row], rstd = rstds[row];
  float dot = 0, total = 0, share = 0;
  visit_row<T, 32>(channels, threadIdx.x % 32, in_vectors, [&](int64_t c, auto together) {
    float values[together()], gradients[together()], gains[together()];
    load_vector(from + c, values);
    load_vector(d + c, gradients);
    load_gain(gain, rule.kind, c, gains);
#pragma unroll
    for (int i = 0; i < together(); ++i) {
      const float value = (values[i] - mean) * rstd, through = gradients[i] * gains[i];
      dot += through * value;
      total += through;
      share += gradients[i] * value;
    }
  });
  const auto count = static_cast<float>(channels);
  dot = warp_sum(dot) / count;
  total = warp_sum(total) / count;
  share = warp_sum(share);
  if (row_gain != nullptr && threadIdx.x % 32 == 0) row_gain[row] = share;
  if (rule.kind != NormKind::layer) total = 0;
  // Where ScaleNorm's floor is active the divisor is constant.
  if (rule.kind == NormKind::scale && rstd >= 1.0f / rule.epsilon) dot = 0;
  [[maybe_unused]] const DropoutFactors drawn = factors_of<drops>(draw, row);
  visit_row<T, 32>(channels, threadIdx.x % 32, in_vectors, [&](int64_t c, auto together) {
    const int64_t at = row * channels + c;
    float values[together()], gradients[together()], gains[together()], sums[together()] = {};
    load_vector(from + c, values);
    load_vector(d + c, gradients);
    load_gain(gain, rule.kind, c, gains);
    if (dsum != nullptr) load_vector(dsum + at, sums);
#pragma unroll
    for (int i = 0; i < together(); ++i) {
      const float value = (values[i] - mean) * rstd, through = gradients[i] * gains[i];
      sums[i] += rstd * (through - total - value * dot);
    }
    if constexpr (drops) {
      float factors[together()];
      store_rounded(dx + at, sums);
      drawn.at(c, factors);
#pragma unroll
      for (int i = 0; i < together(); ++i) sums[i] = fmaf(sums[i], factors[i], 0.0f);
      store_vector(dbranch + at, sums);
    } else {
      store_vector(dx + at, sums);
    }
  });
}

constexpr int64_t kRowBlock = 128;  // rows per block

// gain_partial, bias_partial [blocks of rows, channels]: the sums over each block of rows; either
// may be null.
struct ParameterSums {
  const void *x, *dy;
  const float *means, *rstds;
  int64_t rows, channels;
  float *gain_partial, *bias_partial;
};
template <typename T, int count>
__device__ __forceinline__ void sum_parameters(const ParameterSums& a,
                                               const ColumnSums<2>& shared) {
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kColumnThreads * count;
  const int64_t column = first + threadIdx.x * count;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kRowBlock;
  const int64_t end = min(begin + kRowBlock, a.rows);
  float totals[2][count] = {};
  if (column < a.channels) {
#pragma unroll 4
    for (int64_t r = begin + threadIdx.y; r < end; r += kRowThreads) {
      float values[count], gradients[count];
      load_vector(elements<T>(a.x, r * a.channels + column), values);
      load_vector(elements<T>(a.dy, r * a.channels + column), gradients);
      const float mean = a.means[r], rstd = a.rstds[r];
#pragma unroll
      for (int i = 0; i < count; ++i) {
        totals[0][i] += gradients[i] * ((values[i] - mean) * rstd);
        totals[1][i] += gradients[i];
      }
    }
  }
  const auto of_block = [&](float* partial) {
    return partial == nullptr ? nullptr : partial + blockIdx.x * a.channels;
  };
  float* const to[] = {of_block(a.gain_partial), of_block(a.bias_partial)};
  shared.write(totals, first, a.channels, to);
}
__global__ void norm_parameter_sums(ParameterSums a, bool narrow, bool in_vectors) {
  SharedArena arena;
  const ColumnSums<2> shared(arena, in_vectors);
  with_elements(narrow, in_vectors, [&](auto zero, auto vectors) {
    sum_parameters<decltype(zero), vectors() ? 8 : 1>(a, shared);
  });
}

NormRule rule_of(const NormSpec& spec) {
  return {spec.kind, static_cast<float>(spec.epsilon)};
}

// `others`: the arrays that are read and written beside y.
template <typename T, typename... Others>
NormRows<T> norm_rows_of(const Tensor& gain, const Tensor& bias, const NormSpec& spec,
                         const Tensor& y, const Tensor& mean, const Tensor& rstd,
                         const Others*... others) {
  const T *gains = pointer_or_null<T>(gain), *plus = pointer_or_null<T>(bias);
  T* to = pointer<T>(y);
  const int64_t channels = y.size(-1);
  return {gains,
          plus,
          mean.elements(),
          channels,
          reads_vectors<T>(channels, gains, plus, to, others...),
          rule_of(spec),
          to,
          pointer<float>(mean),
          pointer<float>(rstd)};
}

}  // namespace

void norm_forward(const Tensor& x, const Tensor& gain, const Tensor& bias, const NormSpec& spec,
                  const Tensor& y, const Tensor& mean, const Tensor& rstd) {
  dispatch(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* from = pointer<T>(x);
    launch({"norm_rows", blocks_for(mean.elements(), kWarps), kWarps * 32}, norm_rows<T>, from,
           norm_rows_of<T>(gain, bias, spec, y, mean, rstd, from));
  });
}

void residual_norm_forward(const Tensor& residual, const Tensor& branch, const DropoutSpec& dropout,
                           const Tensor& gain, const Tensor& bias, const NormSpec& spec,
                           const Tensor& sum, const Tensor& y, const Tensor& mean,
                           const Tensor& rstd) {
  dispatch(sum.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *onto = pointer<T>(residual), *from = pointer<T>(branch);
    T* to = pointer<T>(sum);
    const bool drops = dropout.probability != 0;
    launch({"residual_norm_rows", blocks_for(mean.elements(), kWarps), kWarps * 32},
           drops ? residual_norm_rows<T, true> : residual_norm_rows<T, false>, onto, from,
           dropout_draw(branch, dropout), to,
           norm_rows_of<T>(gain, bias, spec, y, mean, rstd, onto, from, to));
  });
}

NormGradients norm_backward(const Tensor& x, const Tensor& gain, const Tensor& mean,
                            const Tensor& rstd, const NormSpec& spec, const Tensor& dy,
                            const Tensor& dsum, const DropoutSpec& dropout, bool gain_wanted,
                            bool bias_wanted) {
  const int64_t rows = mean.elements(), channels = x.size(-1);
  const int64_t blocks = (rows + kRowBlock - 1) / kRowBlock;
  const bool single_gain = spec.kind == NormKind::scale;
  NormGradients result;
  result.dx = Tensor::empty(x.shape(), x.dtype(), x.device());
  const bool drops = dropout.probability != 0;
  result.dbranch = drops ? Tensor::empty(x.shape(), x.dtype(), x.device()) : result.dx;
  if (gain_wanted) {
    result.gain_partial = Tensor::empty({single_gain ? rows : blocks, single_gain ? 1 : channels},
                                        DType::f32, x.device());
  }
  if (bias_wanted) result.bias_partial = Tensor::empty({blocks, channels}, DType::f32, x.device());
  const Tensor row_gain = single_gain ? result.gain_partial : Tensor();
  const Tensor gain_sums = single_gain ? Tensor() : result.gain_partial;
  dispatch(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *from = pointer<T>(x), *gains = pointer_or_null<T>(gain), *d = pointer<T>(dy);
    const T* plus = pointer_or_null<T>(dsum);
    T *to = pointer<T>(result.dx), *also = pointer<T>(result.dbranch);
    launch({"norm_backward_rows", blocks_for(rows, kWarps), kWarps * 32},
           drops ? norm_backward_rows<T, true> : norm_backward_rows<T, false>, from, gains, d, plus,
           pointer<float>(mean), pointer<float>(rstd), rows, channels,
           reads_vectors<T>(channels, from, gains, d, plus, to, also), rule_of(spec), to,
           pointer_or_null<float>(row_gain), dropout_draw(x, dropout), also);
  });
  if (!gain_sums.defined() && !bias_wanted) return result;
  const ParameterSums sums{array_of(x.dtype(), x),
                           array_of(x.dtype(), dy),
                           pointer<float>(mean),
                           pointer<float>(rstd),
                           rows,
                           channels,
                           pointer_or_null<float>(gain_sums),
                           pointer_or_null<float>(result.bias_partial)};
  const bool in_vectors = channels % 8 == 0 && are_aligned(sums.x, sums.dy);
  launch({"norm_parameter_sums",
          dim3(blocks_for(rows, kRowBlock), blocks_for(channels, columns_of_block(in_vectors))),
          dim3(kColumnThreads, kRowThreads), shared_bytes<ColumnSums<2>>(in_vectors)},
         norm_parameter_sums, sums, x.dtype() == DType::bf16, in_vectors);
  return result;
}

}  // namespace linnet::cuda
