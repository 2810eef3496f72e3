// Feature maps, re-weighting and their gradients, token by token.
#include <algorithm>
#include <numbers>
#include <type_traits>

#include "attention/primitives/linear_attention/rows.h"
#include "attention/primitives/linear_attention/tile.h"

namespace linnet::linear_attention_detail {
namespace {

// Calls body(std::integral_constant of the map), so that loops over elements do not choose.
template <typename Body>
void with_map(FeatureMap map, const Body& body) {
  switch (map) {
    case FeatureMap::elu1:
      return body(std::integral_constant<FeatureMap, FeatureMap::elu1>());
    case FeatureMap::relu:
      return body(std::integral_constant<FeatureMap, FeatureMap::relu>());
    case FeatureMap::elu:
      return body(std::integral_constant<FeatureMap, FeatureMap::elu>());
    case FeatureMap::identity:
      return body(std::integral_constant<FeatureMap, FeatureMap::identity>());
  }
}

template <typename T>
Vector<T> feature(FeatureMap map, Vector<T> x) {
  switch (map) {
    case FeatureMap::elu1:
      return x > 0 ? x + 1 : simd::exp<T>(x);
    case FeatureMap::relu:
      return x > 0 ? x : Vector<T>{};
    case FeatureMap::elu:
      return x > 0 ? x : simd::exp<T>(x) - 1;
    case FeatureMap::identity:
      break;
  }
  return x;
}

// dphi/dx, given phi(x).
template <typename T>
Vector<T> feature_slope(FeatureMap map, Vector<T> value) {
  const Vector<T> one = simd::broadcast<T>(1);
  switch (map) {
    case FeatureMap::elu1:
      return value > 1 ? one : value;
    case FeatureMap::relu:
      return value > 0 ? one : Vector<T>{};
    case FeatureMap::elu:
      return value > 0 ? one : value + 1;
    case FeatureMap::identity:
      break;
  }
  return one;
}

template <typename T>
constexpr T kQuarterTurn = static_cast<T>(std::numbers::pi / 2);

// sin(pi x / 2) for 0 <= x <= 1, the Taylor series: its remainder is below 1e-9 of float's one,
// below 1e-20 of double's.
template <typename T>
Vector<T> quarter_sine(Vector<T> x) {
  constexpr int kTerms = std::is_same_v<T, float> ? 7 : 12;
  const Vector<T> angle = x * kQuarterTurn<T>, square = angle * angle;
  // 1 - a^2 / (2 3) (1 - a^2 / (4 5) (1 - ...)).
  Vector<T> series = simd::broadcast<T>(1);
#pragma GCC unroll 16
  for (int term = kTerms - 1; term > 0; --term) {
    series = 1 - square * static_cast<T>(1.0 / (2 * term * (2 * term + 1))) * series;
  }
  return angle * series;
}

}  // namespace

template <typename T>
FeatureTile<T> Kernel<T>::take_features(chunked::Scratch<T>& scratch, int64_t tokens) const {
  FeatureTile<T> tile = {};
  tile.plain = tile.features = scratch.take(tokens * kp);
  if (!reweighted) return tile;
  tile.features = scratch.take(tokens * mp);
  tile.cosines = scratch.take(tokens);
  tile.sines = scratch.take(tokens);
  return tile;
}

template <typename T>
FeatureTile<T> Kernel<T>::from_token(const FeatureTile<T>& tile, int64_t token) const {
  FeatureTile<T> rest = tile;
  rest.plain += token * kp;
  rest.features += token * mp;
  if (!reweighted) return rest;
  rest.cosines += token;
  rest.sines += token;
  return rest;
}

template <typename T>
void Kernel<T>::load_angles(Side side, int64_t b, int64_t t, int64_t n, int64_t h,
                            const FeatureTile<T>& out) const {
  const SequenceView<const T>& x = tokens(side);
  const T* proportions = side == Side::query ? inputs.query_proportions : inputs.key_proportions;
  for (int64_t first = 0; first < chunked::padded(n); first += kLanes<T>) {
    T given[kLanes<T>] = {}, valid[kLanes<T>] = {};
    for (int64_t i = 0; i < std::min(kLanes<T>, n - first); ++i) {
      if (!is_valid(mask(side), b, t + first + i, x.T)) continue;
      given[i] = proportions[(b * x.T + t + first + i) * x.H + h];
      valid[i] = 1;
    }
    const Vector<T> share = simd::load(given), counts = simd::load(valid);
    simd::store(out.cosines + first, counts * quarter_sine<T>(1 - share));
    simd::store(out.sines + first, counts * quarter_sine<T>(share));
  }
}

template <typename T>
void Kernel<T>::load_features(Side side, int64_t b, int64_t t, int64_t n, int64_t h,
                              const FeatureTile<T>& out) const {
  if (reweighted) load_angles(side, b, t, n, h, out);
  with_map(options.feature_map, [&](auto map) { fill_features<map()>(side, b, t, n, h, out); });
}

template <typename T>
template <FeatureMap map>
void Kernel<T>::fill_features(Side side, int64_t b, int64_t t, int64_t n, int64_t h,
                              const FeatureTile<T>& out) const {
  const SequenceView<const T>& x = tokens(side);
  const T scale = side == Side::query ? static_cast<T>(options.query_scale) : T(1);
  const int64_t width = K, stride = kp, wide = mp;
  for (int64_t i = 0; i < n; ++i) {
    T* row = out.plain + i * stride;
    T* weighted = out.features + i * wide;
    chunked::prefetch(x, b, t + i, h);
    if (!is_valid(mask(side), b, t + i, x.T)) {
      std::fill_n(row, stride, T(0));
      std::fill_n(weighted, wide, T(0));
      continue;
    }
    const T* from = x.at(b, t + i, h);
    if (reweighted) {
      const T cosine = out.cosines[i], sine = out.sines[i];
      for_vectors<T>(width, [&](int64_t c, int64_t lanes) {
        // Lanes beyond the row, which not every map leaves zero, are none of its features.
        const Vector<T> all = feature<T>(map, load(from + c, lanes) * scale);
        const Vector<T> value = simd::first_lanes<T>(all, lanes);
        simd::store(row + c, value);
        simd::store(weighted + c, value * cosine);
        simd::store(weighted + stride + c, value * sine);
      });
      const int64_t written = simd::round_up<T>(width);
      for (T* part : {row, weighted, weighted + stride}) {
        std::fill(part + written, part + stride, T(0));
      }
    } else {
      for_vectors<T>(width, [&](int64_t c, int64_t lanes) {
        store<T>(row + c, feature<T>(map, load(from + c, lanes) * scale), lanes);
      });
      std::fill(row + width, row + stride, T(0));
    }
  }
  std::fill(out.plain + n * stride, out.plain + chunked::padded(n) * stride, T(0));
  std::fill(out.features + n * wide, out.features + chunked::padded(n) * wide, T(0));
}

template <typename T>
void Kernel<T>::fold_gradients(int64_t n, const FeatureTile<T>& tile, T* dfeatures,
                               T* dangles) const {
  if (!reweighted) return;
  for (int64_t i = 0; i < n; ++i) {
    const T cosine = tile.cosines[i], sine = tile.sines[i];
    const T* from = dfeatures + i * mp;
    T* to = dfeatures + i * kp;
    Vector<T> dangle = {};
    for (int64_t c = 0; c < kp; c += kLanes<T>) {
      const Vector<T> along_cosine = simd::load(from + c), along_sine = simd::load(from + kp + c);
      dangle += simd::load(tile.plain + i * kp + c) * (along_sine * cosine - along_cosine * sine);
      simd::store(to + c, along_cosine * cosine + along_sine * sine);
    }
    if (dangles != nullptr) dangles[i] += simd::sum<T>(dangle);
  }
}

template <typename T>
void Kernel<T>::store_feature_gradients(Side side, int64_t b, int64_t t, int64_t n, int64_t h,
                                        const FeatureTile<T>& tile, const T* dplain,
                                        SequenceView<T> dx) const {
  if (!dx) return;
  with_map(options.feature_map,
           [&](auto map) { pass_features<map()>(side, b, t, n, h, tile, dplain, dx); });
}

template <typename T>
template <FeatureMap map>
void Kernel<T>::pass_features(Side side, int64_t b, int64_t t, int64_t n, int64_t h,
                              const FeatureTile<T>& tile, const T* dplain,
                              SequenceView<T> dx) const {
  const T scale = side == Side::query ? static_cast<T>(options.query_scale) : T(1);
  const int64_t width = K, stride = kp;
  for (int64_t i = 0; i < n; ++i) {
    T* to = dx.at(b, t + i, h);
    if (!is_valid(mask(side), b, t + i, dx.T)) {
      std::fill_n(to, width, T(0));
      continue;
    }
    const T* value = tile.plain + i * stride;
    const T* d = dplain + i * stride;
    for_vectors<T>(width, [&](int64_t c, int64_t lanes) {
      const Vector<T> slope = feature_slope<T>(map, simd::load(value + c));
      store<T>(to + c, simd::load(d + c) * slope * scale, lanes);
    });
  }
}

template <typename T>
void Kernel<T>::store_proportion_gradients(Side side, int64_t b, int64_t t, int64_t n, int64_t h,
                                           const T* dangles, T* dproportions) const {
  if (dproportions == nullptr) return;
  const SequenceView<const T>& x = tokens(side);
  for (int64_t i = 0; i < n; ++i) {
    const bool valid = is_valid(mask(side), b, t + i, x.T);
    dproportions[(b * x.T + t + i) * x.H + h] = valid ? kQuarterTurn<T> * dangles[i] : T(0);
  }
}

// tile.cpp instantiates the rest of Kernel.
#define LINNET_INSTANTIATE(T)                                                                     \
  template FeatureTile<T> Kernel<T>::take_features(chunked::Scratch<T>&, int64_t) const;          \
  template FeatureTile<T> Kernel<T>::from_token(const FeatureTile<T>&, int64_t) const;            \
  template void Kernel<T>::load_features(Side, int64_t, int64_t, int64_t, int64_t,                \
                                         const FeatureTile<T>&) const;                            \
  template void Kernel<T>::fold_gradients(int64_t, const FeatureTile<T>&, T*, T*) const;          \
  template void Kernel<T>::store_feature_gradients(                                               \
      Side, int64_t, int64_t, int64_t, int64_t, const FeatureTile<T>&, const T*, SequenceView<T>) \
      const;                                                                                      \
  template void Kernel<T>::store_proportion_gradients(Side, int64_t, int64_t, int64_t, int64_t,   \
                                                      const T*, T*) const;
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet::linear_attention_detail
