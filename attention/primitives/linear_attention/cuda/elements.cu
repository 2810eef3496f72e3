// Feature maps, normalisation and their gradients, element by element or one warp per token and
// head.
#include "attention/primitives/linear_attention/cuda/features.h"
#include "attention/primitives/linear_attention/cuda/kernels.h"
#include "attention/primitives/linear_attention/tensors.h"
#include "core/cuda/block_reduce.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda::linear_attention_detail {
namespace {

constexpr int kWarps = 8;  // of a block

// The input side of features: x [tokens, heads, width] with its proportions [tokens, heads].
template <typename T>
struct FeatureInput {
  const T* x;
  const float* proportions;
  const uint8_t* mask;
  int64_t rows, heads, width;  // rows: tokens times heads
  FeatureMap map;
  float scale;

  int64_t features() const { return proportions == nullptr ? width : 2 * width; }
};

template <typename T>
FeatureInput<T> feature_input(const Tensor& x, const Tensor& proportions, const Tensor& mask,
                              FeatureMap map, double scale) {
  return {pointer<const T>(x),
          pointer_or_null<const float>(proportions),
          pointer_or_null<const uint8_t>(mask),
          x.size(0) * x.size(1) * x.size(2),
          x.size(2),
          x.size(3),
          map,
          static_cast<float>(scale)};
}

template <typename T>
Tensor features_typed(const Tensor& x, const FeatureInput<T>& in) {
  const Tensor result =
      Tensor::empty({x.size(0), x.size(1), in.heads, in.features()}, DType::f32, x.device());
  float* out = pointer<float>(result);
  for_each("linear_attention_features", in.rows * in.width, [in, out] __device__(int64_t i) {
    const int64_t row = i / in.width, c = i % in.width;
    const bool read = is_set(in.mask, row / in.heads);
    const float value = read ? feature(in.map, load(in.x + i) * in.scale) : 0.0f;
    if (in.proportions == nullptr) {
      out[i] = value;
      return;
    }
    const float angle = read ? kHalfPi * in.proportions[row] : 0.0f;
    out[row * 2 * in.width + c] = value * cosf(angle);
    out[row * 2 * in.width + in.width + c] = value * sinf(angle);
  });
  return result;
}

// One warp per row.
template <typename T>
__global__ void linear_attention_feature_gradients(FeatureInput<T> in, const float* gradients,
                                                   T* dx, float* dproportions) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (row >= in.rows) return;
  const int lane = static_cast<int>(threadIdx.x);
  const bool read = is_set(in.mask, row / in.heads), reweighted = in.proportions != nullptr;
  const float angle = read && reweighted ? kHalfPi * in.proportions[row] : 0.0f;
  const float cosine = cosf(angle), sine = sinf(angle);
  const float* d = gradients + row * in.width * (reweighted ? 2 : 1);
  float dangle = 0;
  for (int64_t c = lane; c < in.width; c += 32) {
    float gradient = 0;
    if (read) {
      const float scaled = load(in.x + row * in.width + c) * in.scale;
      const float value = feature(in.map, scaled);
      gradient = d[c];
      if (reweighted) {
        const float along_sine = d[in.width + c];
        dangle += value * (along_sine * cosine - gradient * sine);
        gradient = gradient * cosine + along_sine * sine;
      }
      gradient *= feature_slope(in.map, scaled, value) * in.scale;
    }
    if (dx != nullptr) store(dx + row * in.width + c, gradient);
  }
  dangle = warp_sum(dangle);
  if (dproportions != nullptr && lane == 0) dproportions[row] = kHalfPi * dangle;
}

template <typename T>
Tensor values_with_normalizer_typed(const Tensor& v, const Tensor& mask) {
  const int64_t heads = v.size(2), width = v.size(3);
  const Tensor result =
      Tensor::empty({v.size(0), v.size(1), heads, width + 1}, DType::f32, v.device());
  const T* in = pointer<const T>(v);
  const auto* seen = pointer_or_null<const uint8_t>(mask);
  float* out = pointer<float>(result);
  for_each("linear_attention_values", result.elements(), [=] __device__(int64_t i) {
    const int64_t row = i / (width + 1), c = i % (width + 1);
    float value = 0;
    if (is_set(seen, row / heads)) value = c == width ? 1.0f : load(in + row * width + c);
    out[i] = value;
  });
  return result;
}

template <typename T>
void value_gradients_typed(const Tensor& gradients, const Tensor& mask, const Tensor& dv) {
  const int64_t row = dv.size(2) * dv.size(3);
  const auto* in = pointer<const float>(gradients);
  const auto* seen = pointer_or_null<const uint8_t>(mask);
  T* out = pointer<T>(dv);
  for_each("linear_attention_value_gradients", dv.elements(),
           [=] __device__(int64_t i) { store(out + i, is_set(seen, i / row) ? in[i] : 0.0f); });
}

// One warp per row.
template <typename T>
__global__ void linear_attention_output_gradients(const float* y, const T* dy,
                                                  const float* denominators, const uint8_t* mask,
                                                  int64_t rows, int64_t heads, int64_t width,
                                                  Division division, float* out) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x);
  const bool read = is_set(mask, row / heads);
  const float x = denominators[row], divisor = division.divisor(x);
  float along = 0;
  for (int64_t c = lane; c < width; c += 32) {
    const float gradient = read ? load(dy + row * width + c) / divisor : 0.0f;
    out[row * (width + 1) + c] = gradient;
    if (read) along += gradient * y[row * width + c];
  }
  along = warp_sum(along);
  if (lane == 0) out[row * (width + 1) + width] = division.passes(x) ? -along : 0.0f;
}

}  // namespace

Tensor features(const Tensor& x, const Tensor& proportions, const Tensor& mask, FeatureMap map,
                double scale) {
  Tensor result;
  dispatch(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    result = features_typed<T>(x, feature_input<T>(x, proportions, mask, map, scale));
  });
  return result;
}

void feature_gradients(const Tensor& x, const Tensor& proportions, const Tensor& mask,
                       FeatureMap map, double scale, const Tensor& gradients, const Tensor& dx,
                       const Tensor& dproportions) {
  dispatch(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const FeatureInput<T> in = feature_input<T>(x, proportions, mask, map, scale);
    launch({"linear_attention_feature_gradients", blocks_for(in.rows, kWarps), dim3(32, kWarps)},
           linear_attention_feature_gradients<T>, in, pointer<const float>(gradients),
           pointer_or_null<T>(dx), pointer_or_null<float>(dproportions));
  });
}

Tensor spans_on_device(const LinearAttentionTensors& in) {
  if (!in.context.segments.defined()) return Tensor();
  std::vector<int32_t> table;
  for (const Span& span : in.spans) {
    for (const int64_t number : {span.row, span.begin, span.end}) {
      table.push_back(static_cast<int32_t>(number));
    }
  }
  return Tensor::from(table, {static_cast<int64_t>(in.spans.size()), 3},
                      (in.q.defined() ? in.q : in.k).device());
}

Tensor values_with_normalizer(const Tensor& v, const Tensor& mask) {
  Tensor result;
  dispatch(v.dtype(),
           [&](auto zero) { result = values_with_normalizer_typed<decltype(zero)>(v, mask); });
  return result;
}

void value_gradients(const Tensor& gradients, const Tensor& mask, const Tensor& dv) {
  dispatch(dv.dtype(),
           [&](auto zero) { value_gradients_typed<decltype(zero)>(gradients, mask, dv); });
}

void normalize(const Tensor& sums, const Tensor& mask, const LinearAttentionOptions& options,
               const Tensor& y, const Tensor& denominators) {
  const int64_t heads = y.size(2), width = y.size(3);
  const Division division = division_of(options);
  const auto* in = pointer<const float>(sums);
  const auto* seen = pointer_or_null<const uint8_t>(mask);
  float* out = pointer<float>(y);
  float* kept = pointer<float>(denominators);
  for_each("linear_attention_normalize", y.elements(), [=] __device__(int64_t i) {
    const int64_t row = i / width, c = i % width;
    const bool read = is_set(seen, row / heads);
    const float x = in[row * (width + 1) + width];
    out[i] = read ? in[row * (width + 1) + c] / division.divisor(x) : 0.0f;
    if (c == 0) kept[row] = read ? x : 0.0f;
  });
}

Tensor output_gradients(const Tensor& y, const Tensor& dy, const Tensor& denominators,
                        const Tensor& mask, const LinearAttentionOptions& options) {
  const int64_t heads = y.size(2), width = y.size(3), rows = y.size(0) * y.size(1) * heads;
  const Tensor result =
      Tensor::empty({y.size(0), y.size(1), heads, width + 1}, DType::f32, y.device());
  dispatch(dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    launch({"linear_attention_output_gradients", blocks_for(rows, kWarps), dim3(32, kWarps)},
           linear_attention_output_gradients<T>, pointer<const float>(y), pointer<const T>(dy),
           pointer<const float>(denominators), pointer_or_null<const uint8_t>(mask), rows, heads,
           width, division_of(options), pointer<float>(result));
  });
  return result;
}

}  // namespace linnet::cuda::linear_attention_detail
