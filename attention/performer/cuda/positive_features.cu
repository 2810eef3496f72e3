#include "attention/performer/cuda/positive_features.h"

#include "core/cuda/block_reduce.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

constexpr int kWarps = 8;  // of a block

struct Rows {
  const float *p, *x, *stabilizers;
  const uint8_t* mask;
  int64_t rows, heads, features, width;
  PerformerKernel kernel;
  float epsilon;

  __device__ bool valid(int64_t row) const { return mask == nullptr || mask[row / heads] != 0; }
  // |x|^2 / 2; all lanes take part.
  __device__ float half_square(int64_t row, bool read) const {
    float square = 0;
    for (int64_t c = threadIdx.x; read && c < width; c += 32) {
      square += x[row * width + c] * x[row * width + c];
    }
    return warp_sum(square) / 2;
  }
};

Rows rows_of(const PositiveFeatures& how, const Tensor& p, const Tensor& x) {
  return {pointer<const float>(p),
          pointer<const float>(x),
          pointer_or_null<const float>(how.stabilizers),
          pointer_or_null<const uint8_t>(how.mask),
          p.size(0) * p.size(1) * p.size(2),
          p.size(2),
          p.size(3),
          x.size(3),
          how.kernel,
          static_cast<float>(how.epsilon)};
}

// Kernels have one warp per row.
__device__ __forceinline__ int64_t row_of_warp() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
}

__global__ void positive_feature_rows(Rows in, float* y) {
  const int64_t row = row_of_warp();
  if (row >= in.rows) return;
  const bool read = in.valid(row), exponential = in.kernel == PerformerKernel::exp;
  float shift = in.half_square(row, read && exponential);
  if (read && exponential) shift += in.stabilizers[row];
  const float scale = 1.0f / sqrtf(static_cast<float>(in.features));
  for (int64_t c = threadIdx.x; c < in.features; c += 32) {
    float value = 0;
    if (read) {
      const float p = in.p[row * in.features + c];
      value = exponential ? scale * (expf(fminf(p - shift, 0.0f)) + in.epsilon)
                          : fmaxf(p, 0.0f) + in.epsilon;
    }
    y[row * in.features + c] = value;
  }
}

__global__ void positive_feature_rows_backward(Rows in, const float* y, const float* dy, float* dp,
                                               float* dx) {
  const int64_t row = row_of_warp();
  if (row >= in.rows) return;
  const bool read = in.valid(row), exponential = in.kernel == PerformerKernel::exp;
  const float shift = in.epsilon / sqrtf(static_cast<float>(in.features));
  float total = 0;
  for (int64_t c = threadIdx.x; c < in.features; c += 32) {
    const int64_t at = row * in.features + c;
    float gradient = 0;
    if (read && exponential) {
      gradient = (y[at] - shift) * dy[at];
      total += gradient;
    } else if (read) {
      gradient = in.p[at] > 0 ? dy[at] : 0.0f;
    }
    dp[at] = gradient;
  }
  total = warp_sum(total);
  for (int64_t c = threadIdx.x; c < in.width; c += 32) {
    dx[row * in.width + c] = read ? -total * in.x[row * in.width + c] : 0.0f;
  }
}

__global__ void largest_projection_rows(Rows in, bool of_exponents, float* to) {
  const int64_t row = row_of_warp();
  if (row >= in.rows) return;
  float largest = -INFINITY;
  for (int64_t c = threadIdx.x; c < in.features; c += 32) {
    largest = fmaxf(largest, in.p[row * in.features + c]);
  }
  largest = warp_max(largest);
  const float half = in.half_square(row, of_exponents);
  if (threadIdx.x == 0) to[row] = of_exponents ? ceilf(largest - half) : largest;
}

}  // namespace

void positive_features(const PositiveFeatures& how, const Tensor& projections, const Tensor& x,
                       const Tensor& y) {
  const Rows in = rows_of(how, projections, x);
  launch({"positive_feature_rows", blocks_for(in.rows, kWarps), dim3(32, kWarps)},
         positive_feature_rows, in, pointer<float>(y));
}

void positive_features_backward(const PositiveFeatures& how, const Tensor& projections,
                                const Tensor& x, const Tensor& y, const Tensor& dy,
                                const Tensor& dprojections, const Tensor& dx) {
  const Rows in = rows_of(how, projections, x);
  launch({"positive_feature_rows_backward", blocks_for(in.rows, kWarps), dim3(32, kWarps)},
         positive_feature_rows_backward, in, pointer<const float>(y), pointer<const float>(dy),
         pointer<float>(dprojections), pointer<float>(dx));
}

void largest_projections(const Tensor& projections, const Tensor& x, bool of_exponents,
                         const Tensor& to) {
  const Rows in = rows_of({}, projections, x);
  launch({"largest_projection_rows", blocks_for(in.rows, kWarps), dim3(32, kWarps)},
         largest_projection_rows, in, of_exponents, pointer<float>(to));
}

void maximum_decay(const Tensor& maxima, const Tensor& carried, const Tensor& segments,
                   const Tensor& log_decay, const Tensor& last) {
  const auto* from = pointer<const float>(maxima);
  const auto* first = pointer_or_null<const int64_t>(carried);
  const auto* ids = pointer_or_null<const int32_t>(segments);
  float* decay = pointer<float>(log_decay);
  int64_t* end = pointer<int64_t>(last);
  const int64_t time = maxima.size(1), heads = maxima.size(2);
  const auto none = static_cast<float>(kNoMaximum);
  const auto maximum = [=] __device__(int64_t number, int64_t t) {
    const int64_t token = number / heads * time + t;
    if (t >= 0) return fmaxf(from[token * heads + number % heads], none);
    return first == nullptr ? none : static_cast<float>(first[number]);
  };
  for_each("maximum_decay", maxima.elements(), [=] __device__(int64_t i) {
    const int64_t token = i / heads, t = token % time, number = token / time * heads + i % heads;
    const bool begins = t > 0 && ids != nullptr && ids[token] != ids[token - 1];
    const float before = begins ? none : maximum(number, t - 1);
    decay[i] = before > none ? before - maximum(number, t) : 0.0f;
  });
  for_each("maximum_decay_last", last.elements(), [=] __device__(int64_t number) {
    end[number] = static_cast<int64_t>(maximum(number, time - 1));
  });
}

}  // namespace linnet::cuda
