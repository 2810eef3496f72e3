// Feature maps and their gradients, normalisation, states: the element-wise part of linear
// attention.
#include "attention/primitives/linear_attention_tile.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "attention/primitives/simd.h"
#include "core/error.h"

namespace linnet::linear_attention_detail {
namespace {

using simd::kLanes;
using simd::Vector;

// Calls body(std::integral_constant of the map), so that loops over numbers do not choose.
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

// Calls body(c, lanes, partial) for every vector of a row.
template <typename T, typename Body>
void for_vectors(int64_t width, const Body& body) {
  int64_t c = 0;
  for (; c + kLanes<T> <= width; c += kLanes<T>) body(c, kLanes<T>);
  if (c < width) body(c, width - c);
}
template <typename T>
Vector<T> load(const T* p, int64_t lanes) {
  return lanes == kLanes<T> ? simd::load(p) : simd::load_partial(p, lanes);
}
template <typename T>
void store(T* p, Vector<T> v, int64_t lanes) {
  lanes == kLanes<T> ? simd::store(p, v) : simd::store_partial(p, v, lanes);
}

template <typename T>
T angle(T proportion) {
  return static_cast<T>(std::numbers::pi / 2) * proportion;
}

// D(x); a NaN stays NaN.
template <typename T>
T denominator(const LinearAttentionOptions& options, T x) {
  const T epsilon = static_cast<T>(options.epsilon);
  return options.normalizer == Normalizer::add ? x + epsilon : (x < epsilon ? epsilon : x);
}

}  // namespace

template <typename T>
Kernel<T>::Kernel(const LinearAttentionOptions& options_in,
                  const LinearAttentionInputs<T>& inputs_in, int64_t key_heads_in, int64_t heads,
                  int64_t value_width)
    : options(options_in),
      inputs(inputs_in),
      key_heads(key_heads_in),
      group(key_heads_in > 0 ? heads / key_heads_in : 0),
      K(inputs_in.q ? inputs_in.q.K : inputs_in.k.K),
      V(value_width),
      reweighted(inputs_in.query_proportions != nullptr || inputs_in.key_proportions != nullptr),
      normalized(options_in.normalizer != Normalizer::none) {
  m = reweighted ? 2 * K : K;
  mp = chunked::padded(m);
  vp = chunked::padded(V);
  const auto& [q, k, v, query_proportions, key_proportions, log_decay, query_mask, key_mask] =
      inputs;
  require(key_heads > 0 && heads % key_heads == 0, "linear_attention: ", heads,
          " query heads cannot share ", key_heads, " key heads; expected a divisor");
  require(K > 0 && V > 0, "linear_attention: widths must be positive, got K=", K, " V=", V);
  require(!normalized || options.epsilon > 0, "linear_attention: epsilon must be positive, got ",
          options.epsilon);
  require(!q || q.H == heads, "linear_attention: q has ", q.H, " heads, expected ", heads);
  require(!q || !k || (q.K == k.K && q.B == k.B), "linear_attention: q is [", q.B, ",.,.,", q.K,
          "] but k is [", k.B, ",.,.,", k.K, "]; batch and width must agree");
  require(!k || (v && v.B == k.B && v.T == k.T && v.H == k.H && k.H == key_heads && v.K == V),
          "linear_attention: k [", k.B, ",", k.T, ",", k.H, ",", k.K, "] and v [", v.B, ",", v.T,
          ",", v.H, ",", v.K, "] do not belong together");
  require(!q || !k || (query_proportions == nullptr) == (key_proportions == nullptr),
          "linear_attention: proportions must be given for both queries and keys, or for neither");
}

template <typename T>
double Kernel<T>::work(const std::vector<Span>& spans) const {
  double tokens = 0;
  for (const Span& span : spans) tokens += static_cast<double>(span.end - span.begin);
  return tokens * static_cast<double>(key_heads * group * m * V * 2);
}

template <typename T>
void Kernel<T>::load_features(Side side, int64_t b, int64_t t, int64_t n, int64_t h, T* out) const {
  with_map(options.feature_map, [&](auto map) { fill_features<map()>(side, b, t, n, h, out); });
}

template <typename T>
template <FeatureMap map>
void Kernel<T>::fill_features(Side side, int64_t b, int64_t t, int64_t n, int64_t h, T* out) const {
  const bool query = side == Side::query;
  const SequenceView<const T>& x = query ? inputs.q : inputs.k;
  const uint8_t* mask = query ? inputs.query_mask : inputs.key_mask;
  const T* proportions = query ? inputs.query_proportions : inputs.key_proportions;
  const T scale = query ? static_cast<T>(options.query_scale) : T(1);
  const int64_t width = K, used = m, stride = mp;
  for (int64_t i = 0; i < n; ++i) {
    T* row = out + i * stride;
    chunked::prefetch(x, b, t + i, h);
    if (!is_valid(mask, b, t + i, x.T)) {
      std::fill_n(row, stride, T(0));
      continue;
    }
    const T* from = x.at(b, t + i, h);
    if (reweighted) {
      const T theta = angle(proportions[(b * x.T + t + i) * x.H + h]);
      const T cosine = std::cos(theta), sine = std::sin(theta);
      for_vectors<T>(width, [&](int64_t c, int64_t lanes) {
        const Vector<T> value = feature<T>(map, load(from + c, lanes) * scale);
        store<T>(row + c, value * cosine, lanes);
        store<T>(row + width + c, value * sine, lanes);
      });
    } else {
      for_vectors<T>(width, [&](int64_t c, int64_t lanes) {
        store<T>(row + c, feature<T>(map, load(from + c, lanes) * scale), lanes);
      });
    }
    std::fill(row + used, row + stride, T(0));
  }
  std::fill(out + n * stride, out + chunked::padded(n) * stride, T(0));
}

template <typename T>
void Kernel<T>::store_feature_gradients(Side side, int64_t b, int64_t t, int64_t n, int64_t h,
                                        const T* dphi, SequenceView<T> dx, T* dproportions,
                                        const T* features) const {
  with_map(options.feature_map, [&](auto map) {
    pass_features<map()>(side, b, t, n, h, dphi, dx, dproportions, features);
  });
}

template <typename T>
template <FeatureMap map>
void Kernel<T>::pass_features(Side side, int64_t b, int64_t t, int64_t n, int64_t h, const T* dphi,
                              SequenceView<T> dx, T* dproportions, const T* features) const {
  const bool query = side == Side::query;
  const SequenceView<const T>& x = query ? inputs.q : inputs.k;
  const uint8_t* mask = query ? inputs.query_mask : inputs.key_mask;
  const T* proportions = query ? inputs.query_proportions : inputs.key_proportions;
  const T scale = query ? static_cast<T>(options.query_scale) : T(1);
  const int64_t width = K;
  for (int64_t i = 0; i < n; ++i) {
    const T* d = dphi + i * mp;
    const int64_t token = (b * x.T + t + i) * x.H + h;
    T* to = dx ? dx.at(b, t + i, h) : nullptr;
    if (!is_valid(mask, b, t + i, x.T)) {
      if (to != nullptr) std::fill_n(to, width, T(0));
      if (dproportions != nullptr) dproportions[token] = 0;
      continue;
    }
    const T* from = x.at(b, t + i, h);
    if (!reweighted) {
      for_vectors<T>(width, [&](int64_t c, int64_t lanes) {
        const Vector<T> value = features != nullptr
                                    ? load(features + i * mp + c, lanes)
                                    : feature<T>(map, load(from + c, lanes) * scale);
        if (to == nullptr) return;
        store<T>(to + c, load(d + c, lanes) * feature_slope<T>(map, value) * scale, lanes);
      });
      continue;
    }
    const T theta = angle(proportions[token]);
    const T cosine = std::cos(theta), sine = std::sin(theta);
    Vector<T> turned = {};
    for_vectors<T>(width, [&](int64_t c, int64_t lanes) {
      const Vector<T> value = feature<T>(map, load(from + c, lanes) * scale);
      const Vector<T> along_cosine = load(d + c, lanes), along_sine = load(d + width + c, lanes);
      // Lanes beyond the row are zero in both gradients.
      turned += value * (along_sine * cosine - along_cosine * sine);
      const Vector<T> gradient = along_cosine * cosine + along_sine * sine;
      if (to == nullptr) return;
      store<T>(to + c, gradient * feature_slope<T>(map, value) * scale, lanes);
    });
    if (dproportions != nullptr) dproportions[token] = angle(simd::sum<T>(turned));
  }
}

template <typename T>
void Kernel<T>::store_value_gradients(int64_t b, int64_t t, int64_t n, int64_t h, const T* dvalues,
                                      SequenceView<T> dv) const {
  for (int64_t i = 0; i < n; ++i) {
    T* row = dv.at(b, t + i, h);
    if (is_valid(inputs.key_mask, b, t + i, inputs.v.T)) {
      std::copy_n(dvalues + i * vp, V, row);
    } else {
      std::fill_n(row, V, T(0));
    }
  }
}

template <typename T>
void Kernel<T>::sum_denominators(int64_t n, const T* queries, const T* mass, const T* weights,
                                 T* out) const {
  for (int64_t first = 0; first < n; first += kLanes<T>) {
    Vector<T> rows[kLanes<T>] = {};
    const int64_t count = std::min(kLanes<T>, n - first);
    for (int64_t r = 0; r < count; ++r) {
      const T* query = queries + (first + r) * mp;
      const T* weight = weights + (first + r) * kChunk;
      for (int64_t c = 0; c < mp; c += kLanes<T>)
        rows[r] += simd::load(query + c) * simd::load(mass + c);
      for (int64_t j = 0; j < chunked::padded(first + r + 1); j += kLanes<T>) {
        rows[r] += simd::load(weight + j);
      }
    }
    simd::store(out + first, simd::row_sums<T>(rows));
  }
}

template <typename T>
void Kernel<T>::store_outputs(int64_t b, int64_t t, int64_t n, int64_t h, const T* numerators,
                              const T* row_denominators, SequenceView<T> y, T* denominators) const {
  for (int64_t i = 0; i < n; ++i) {
    T* row = y.at(b, t + i, h);
    const bool valid = is_valid(inputs.query_mask, b, t + i, y.T);
    if (denominators != nullptr) {
      denominators[(b * y.T + t + i) * y.H + h] = valid ? row_denominators[i] : T(0);
    }
    if (!valid) {
      std::fill_n(row, V, T(0));
      continue;
    }
    const T factor = normalized ? T(1) / denominator(options, row_denominators[i]) : T(1);
    for (int64_t c = 0; c < V; ++c) row[c] = numerators[i * vp + c] * factor;
  }
}

template <typename T>
void Kernel<T>::load_output_gradients(int64_t b, int64_t t, int64_t n, int64_t h,
                                      SequenceView<const T> y, const T* denominators,
                                      SequenceView<const T> dy, T* G, T* ddenominators) const {
  chunked::load_rows(dy, inputs.query_mask, b, t, n, h, G, vp);
  std::fill_n(ddenominators, chunked::padded(n), T(0));
  if (!normalized) return;
  const int64_t width = V;
  for (int64_t first = 0; first < n; first += kLanes<T>) {
    Vector<T> rows[kLanes<T>] = {};
    const int64_t count = std::min(kLanes<T>, n - first);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t i = first + r;
      chunked::prefetch(y, b, t + i, h);
      if (!is_valid(inputs.query_mask, b, t + i, dy.T)) continue;
      const T x = denominators[(b * dy.T + t + i) * dy.H + h];
      const T factor = T(1) / denominator(options, x);
      const bool clamped =
          options.normalizer == Normalizer::clamp && x < static_cast<T>(options.epsilon);
      T* row = G + i * vp;
      const T* output = y.at(b, t + i, h);
      Vector<T> along = {};
      for_vectors<T>(width, [&](int64_t c, int64_t lanes) {
        const Vector<T> gradient = load(row + c, lanes) * factor;
        store<T>(row + c, gradient, lanes);
        along -= gradient * load(output + c, lanes);
      });
      if (!clamped) rows[r] = along;
    }
    simd::store(ddenominators + first, simd::row_sums<T>(rows));
  }
}

template <typename T>
void Kernel<T>::load_state(LinearAttentionState<const T> from, int64_t index, int64_t key_head,
                           T* state) const {
  std::fill_n(state, state_size(), T(0));
  const int64_t number = index * key_heads + key_head;
  if (from.memory != nullptr) {
    const T* memory = from.memory + number * m * V;
    for (int64_t r = 0; r < m; ++r) std::copy_n(memory + r * V, V, state + r * vp);
  }
  if (from.mass != nullptr) std::copy_n(from.mass + number * m, m, state + mp * vp);
}

template <typename T>
void Kernel<T>::store_state(const T* state, LinearAttentionState<T> to, int64_t index,
                            int64_t key_head) const {
  const int64_t number = index * key_heads + key_head;
  if (to.memory != nullptr) {
    T* memory = to.memory + number * m * V;
    for (int64_t r = 0; r < m; ++r) std::copy_n(state + r * vp, V, memory + r * V);
  }
  if (to.mass != nullptr) std::copy_n(state + mp * vp, m, to.mass + number * m);
}

template <typename T>
void Kernel<T>::accumulate(int64_t n, const T* left, const T* right, const T* weights,
                           T* state) const {
  tile_gemm<T>(m, vp, n, T(1), {left, mp, true}, {right, vp}, Write::accumulate, state, vp);
  T* mass = state + mp * vp;
  for (int64_t i = 0; i < n; ++i) {
    axpy_row(mp, weights == nullptr ? T(1) : weights[i], left + i * mp, mass);
  }
}

template <typename T>
Partials<T>::Partials(const std::vector<chunked::Segment>& segments, int64_t heads,
                      int64_t state_size)
    : heads_(heads), state_size_(state_size) {
  const bool split = std::any_of(segments.begin(), segments.end(),
                                 [](const chunked::Segment& s) { return s.count > 1; });
  if (split) sums_.resize(segments.size() * static_cast<size_t>(heads * state_size));
}

template <typename T>
void Partials<T>::add(int64_t segment, int64_t head, T* state) {
  const T* sum = at(segment, head);
  for (int64_t i = 0; i < state_size_; ++i) state[i] += sum[i];
}

template <typename T>
void Partials<T>::add_before(const std::vector<chunked::Segment>& segments, int64_t segment,
                             int64_t head, T* state) {
  for (int64_t s = segments[segment].first; s < segment; ++s) add(s, head, state);
}

template <typename T>
void Partials<T>::add_after(const std::vector<chunked::Segment>& segments, int64_t segment,
                            int64_t head, T* state) {
  const int64_t last = segments[segment].first + segments[segment].count - 1;
  for (int64_t s = last; s > segment; --s) add(s, head, state);
}

#define LINNET_INSTANTIATE(T) \
  template struct Kernel<T>;  \
  template class Partials<T>;
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet::linear_attention_detail
