#include "attention/performer/cuda/positive_features.h"

#include <cmath>

#include "attention/tensor_core/fast_math.h"
#include "core/cuda/block_reduce.h"
#include "core/cuda/for_each.h"
#include "core/cuda/vectors.h"

namespace linnet::cuda {
namespace {

constexpr int kWarps = 8;  // of a block

struct Rows {
  const float *p, *x, *stabilizers;
  const uint8_t* mask;
  int64_t rows, heads, features, width;
  bool features_in_vectors, width_in_vectors;
  PerformerKernel kernel;
  float epsilon, scale;  // of the exponentials: 1 / sqrt(features)

  __device__ bool valid(int64_t row) const { return mask == nullptr || mask[row / heads] != 0; }
  // Calls visit(c, together) for this lane's features, or channels of x.
  template <typename Visit>
  __device__ __forceinline__ void each_feature(const Visit& visit) const {
    visit_row<float, 32>(features, threadIdx.x, features_in_vectors, visit);
  }
  template <typename Visit>
  __device__ __forceinline__ void each_channel(const Visit& visit) const {
    visit_row<float, 32>(width, threadIdx.x, width_in_vectors, visit);
  }
  // |x|^2 / 2; all lanes take part.
  __device__ float half_square(int64_t row, bool read) const {
    float square = 0;
    if (read) {
      each_channel([&](int64_t c, auto together) {
        float values[together()];
        load_vector(x + row * width + c, values);
#pragma unroll
        for (int i = 0; i < together(); ++i) square += values[i] * values[i];
      });
    }
    return warp_sum(square) / 2;
  }
};

// `others`: the other tensors of features that are read and written.
template <typename... Features>
Rows rows_of(const PositiveFeatures& how, const Tensor& p, const Tensor& x,
             const Features&... others) {
  const auto *from = pointer<const float>(p), *vectors = pointer<const float>(x);
  return {from,
          vectors,
          pointer_or_null<const float>(how.stabilizers),
          pointer_or_null<const uint8_t>(how.mask),
          p.size(0) * p.size(1) * p.size(2),
          p.size(2),
          p.size(3),
          x.size(3),
          reads_vectors<float>(p.size(3), from, pointer<const float>(others)...),
          reads_vectors<float>(x.size(3), vectors),
          how.kernel,
          static_cast<float>(how.epsilon),
          static_cast<float>(1 / std::sqrt(static_cast<double>(p.size(3))))};
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
  in.each_feature([&](int64_t c, auto together) {
    const int64_t at = row * in.features + c;
    float values[together()] = {};
    if (read) {
      load_vector(in.p + at, values);
#pragma unroll
      for (int i = 0; i < together(); ++i) {
        const float value = exponential ? values[i] - shift : values[i];
        // NaN stays.
        values[i] = exponential
                        ? in.scale * (tensor_core::fast_exp(value > 0 ? 0.0f : value) + in.epsilon)
                        : (value <= 0 ? 0.0f : value) + in.epsilon;
      }
    }
    store_vector(y + at, values);
  });
}

__global__ void positive_feature_rows_backward(Rows in, const float* y, const float* dy, float* dp,
                                               float* dx) {
  const int64_t row = row_of_warp();
  if (row >= in.rows) return;
  const bool read = in.valid(row), exponential = in.kernel == PerformerKernel::exp;
  const float shift = in.epsilon * in.scale;
  float total = 0;
  in.each_feature([&](int64_t c, auto together) {
    const int64_t at = row * in.features + c;
    float values[together()], gradients[together()] = {};
    if (read) {
      load_vector((exponential ? y : in.p) + at, values);
      load_vector(dy + at, gradients);
#pragma unroll
      for (int i = 0; i < together(); ++i) {
        if (exponential) {
          gradients[i] *= values[i] - shift;
          total += gradients[i];
        } else if (!(values[i] > 0)) {
          gradients[i] = 0;
        }
      }
    }
    store_vector(dp + at, gradients);
  });
  total = warp_sum(total);
  in.each_channel([&](int64_t c, auto together) {
    const int64_t at = row * in.width + c;
    float values[together()] = {};
    if (read) {
      load_vector(in.x + at, values);
#pragma unroll
      for (int i = 0; i < together(); ++i) values[i] *= -total;
    }
    store_vector(dx + at, values);
  });
}

__global__ void largest_projection_rows(Rows in, bool of_exponents, float* to) {
  const int64_t row = row_of_warp();
  if (row >= in.rows) return;
  float largest = -INFINITY;
  in.each_feature([&](int64_t c, auto together) {
    float values[together()];
    load_vector(in.p + row * in.features + c, values);
#pragma unroll
    for (int i = 0; i < together(); ++i) largest = fmaxf(largest, values[i]);
  });
  largest = warp_max(largest);
  const float half = in.half_square(row, of_exponents);
  if (threadIdx.x == 0) to[row] = of_exponents ? ceilf(largest - half) : largest;
}

}  // namespace

void positive_features(const PositiveFeatures& how, const Tensor& projections, const Tensor& x,
                       const Tensor& y) {
  const Rows in = rows_of(how, projections, x, y);
  launch({"positive_feature_rows", blocks_for(in.rows, kWarps), dim3(32, kWarps)},
         positive_feature_rows, in, pointer<float>(y));
}

void positive_features_backward(const PositiveFeatures& how, const Tensor& projections,
                                const Tensor& x, const Tensor& y, const Tensor& dy,
                                const Tensor& dprojections, const Tensor& dx) {
  Rows in = rows_of(how, projections, x, y, dy, dprojections);
  in.width_in_vectors &= are_aligned(pointer<float>(dx));
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
