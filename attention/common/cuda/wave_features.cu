#include "attention/common/cuda/wave_features.h"

#include "attention/common/wave_features.h"
#include "core/cuda/block_reduce.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

constexpr int kWarps = 8;  // of a block

// Rows of a sequence [B,T,H,width], one warp each.
__device__ __forceinline__ int64_t row_of_warp() {
  return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
}
int64_t rows_of(const Tensor& x) {
  return x.size(0) * x.size(1) * x.size(2);
}

struct Directions {
  const float *x, *sigma;
  const uint8_t* mask;
  int64_t rows, heads, width;

  __device__ bool valid(int64_t row) const { return mask == nullptr || mask[row / heads] != 0; }
  // |x|, 0 for masked rows; all lanes take part.
  __device__ float length(int64_t row, bool read) const {
    float square = 0;
    for (int64_t c = threadIdx.x; read && c < width; c += 32) {
      square += x[row * width + c] * x[row * width + c];
    }
    return sqrtf(warp_sum(square));
  }
};

Directions directions_of(const Tensor& x, const Tensor& sigma, const Tensor& mask) {
  return {pointer<const float>(x),
          pointer<const float>(sigma),
          pointer_or_null<const uint8_t>(mask),
          rows_of(x),
          x.size(2),
          x.size(3)};
}

__global__ void scaled_direction_rows(Directions in, float* y) {
  const int64_t row = row_of_warp();
  if (row >= in.rows) return;
  const bool read = in.valid(row);
  const float factor = 1.0f / (in.length(row, read) + static_cast<float>(kLengthFloor));
  const float* sigma = in.sigma + row % in.heads * in.width;
  for (int64_t c = threadIdx.x; c < in.width; c += 32) {
    y[row * in.width + c] = read ? factor * sigma[c] * in.x[row * in.width + c] : 0.0f;
  }
}

__global__ void scaled_direction_rows_backward(Directions in, const float* dy, float* dx,
                                               float* dsigma_rows) {
  const int64_t row = row_of_warp();
  if (row >= in.rows) return;
  const bool read = in.valid(row);
  const float length = in.length(row, read);
  const float factor = 1.0f / (length + static_cast<float>(kLengthFloor));
  const float* sigma = in.sigma + row % in.heads * in.width;
  const int64_t at = row * in.width;
  float along = 0;
  for (int64_t c = threadIdx.x; read && c < in.width; c += 32) {
    along += in.x[at + c] * sigma[c] * dy[at + c];
  }
  along = warp_sum(along);
  const float radial = length > 0 ? along * factor * factor / length : 0.0f;
  for (int64_t c = threadIdx.x; c < in.width; c += 32) {
    dx[at + c] = read ? factor * sigma[c] * dy[at + c] - radial * in.x[at + c] : 0.0f;
    dsigma_rows[at + c] = read ? factor * in.x[at + c] * dy[at + c] : 0.0f;
  }
}

// One warp per row.
__global__ void wave_feature_rows_backward(const float* p, float amplitude, const float* factors,
                                           const float* dy, int64_t rows, int64_t width, float* dp,
                                           float* dfactors) {
  const int64_t row = row_of_warp();
  if (row >= rows) return;
  const float scale = amplitude * (factors == nullptr ? 1.0f : factors[row]);
  float along = 0;
  for (int64_t c = threadIdx.x; c < width; c += 32) {
    const float sine = sinf(p[row * width + c]), cosine = cosf(p[row * width + c]);
    const float dsine = dy[2 * row * width + c], dcosine = dy[2 * row * width + width + c];
    dp[row * width + c] = scale * (cosine * dsine - sine * dcosine);
    along += sine * dsine + cosine * dcosine;
  }
  along = warp_sum(along);
  if (dfactors != nullptr && threadIdx.x == 0) dfactors[row] = amplitude * along;
}

}  // namespace

void scaled_directions(const Tensor& x, const Tensor& sigma, const Tensor& mask, const Tensor& y) {
  launch({"scaled_direction_rows", blocks_for(rows_of(x), kWarps), dim3(32, kWarps)},
         scaled_direction_rows, directions_of(x, sigma, mask), pointer<float>(y));
}

void scaled_directions_backward(const Tensor& x, const Tensor& sigma, const Tensor& mask,
                                const Tensor& dy, const Tensor& dx, const Tensor& dsigma_rows) {
  launch({"scaled_direction_rows_backward", blocks_for(rows_of(x), kWarps), dim3(32, kWarps)},
         scaled_direction_rows_backward, directions_of(x, sigma, mask), pointer<const float>(dy),
         pointer<float>(dx), pointer<float>(dsigma_rows));
}

void wave_features(const Tensor& projections, double amplitude, const Tensor& factor,
                   const Tensor& y) {
  const auto* p = pointer<const float>(projections);
  const auto* factors = pointer_or_null<const float>(factor);
  float* out = pointer<float>(y);
  const int64_t width = projections.size(3);
  const auto a = static_cast<float>(amplitude);
  for_each("wave_features", projections.elements(), [=] __device__(int64_t i) {
    const int64_t row = i / width, c = i % width;
    const float scale = a * (factors == nullptr ? 1.0f : factors[row]);
    out[2 * row * width + c] = scale * sinf(p[i]);
    out[2 * row * width + width + c] = scale * cosf(p[i]);
  });
}

void wave_features_backward(const Tensor& projections, double amplitude, const Tensor& factor,
                            const Tensor& dy, const Tensor& dprojections, const Tensor& dfactor) {
  const int64_t rows = rows_of(projections);
  launch({"wave_feature_rows_backward", blocks_for(rows, kWarps), dim3(32, kWarps)},
         wave_feature_rows_backward, pointer<const float>(projections),
         static_cast<float>(amplitude), pointer_or_null<const float>(factor),
         pointer<const float>(dy), rows, projections.size(3), pointer<float>(dprojections),
         pointer_or_null<float>(dfactor));
}

}  // namespace linnet::cuda
