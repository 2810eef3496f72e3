// Normalisation and states: with features_tile.cpp the element-wise part of linear attention.
#include "attention/primitives/linear_attention/tile.h"

#include <algorithm>

#include "attention/primitives/common/simd.h"
#include "attention/primitives/linear_attention/rows.h"
#include "core/error.h"

namespace linnet::linear_attention_detail {
namespace {

using simd::kLanes;
using simd::Vector;

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
      K(std::max(inputs_in.q.K, inputs_in.k.K)),  // one may be absent, or of no tokens
      V(value_width),
      reweighted(inputs_in.query_proportions != nullptr || inputs_in.key_proportions != nullptr),
      normalized(options_in.normalizer != Normalizer::none) {
  kp = chunked::padded(K);
  m = reweighted ? 2 * kp : K;
  mp = reweighted ? 2 * kp : kp;
  vp = chunked::padded(V);
  const SequenceView<const T>&q = inputs.q, &k = inputs.k, &v = inputs.v;
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
  require(!q || !k || (inputs.query_proportions == nullptr) == (inputs.key_proportions == nullptr),
          "linear_attention: proportions must be given for both queries and keys, or for neither");
  require(!reweighted || !inputs.channel_decay,
          "linear_attention: a log-decay per channel is not defined with proportions, which make "
          "two features of a channel; give one per head");
}

template <typename T>
double Kernel<T>::work(const std::vector<Span>& spans) const {
  double tokens = 0;
  for (const Span& span : spans) tokens += static_cast<double>(span.end - span.begin);
  return tokens * static_cast<double>(key_heads * group * m * V * 2);
}

template <typename T>
void Kernel<T>::store_value_gradients(int64_t b, int64_t t, int64_t n, int64_t h, const T* dvalues,
                                      SequenceView<T> dv) const {
  for (int64_t i = 0; i < n; ++i) {
    T* row = dv.at(b, t + i, h);
    if (is_valid(inputs.key_mask, b, t + i, inputs.v.T)) {
      simd::copy(dvalues + i * vp, V, row);
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
  const int64_t number = index * key_heads + key_head, rows = reweighted ? 2 * K : K;
  if (from.memory != nullptr) {
    const T* memory = from.memory + number * rows * V;
    for (int64_t r = 0; r < rows; ++r) std::copy_n(memory + r * V, V, state + padded_row(r) * vp);
  }
  if (from.mass == nullptr) return;
  for (int64_t r = 0; r < rows; ++r) state[mp * vp + padded_row(r)] = from.mass[number * rows + r];
}

template <typename T>
void Kernel<T>::store_state(const T* state, LinearAttentionState<T> to, int64_t index,
                            int64_t key_head) const {
  const int64_t number = index * key_heads + key_head, rows = reweighted ? 2 * K : K;
  if (to.memory != nullptr) {
    T* memory = to.memory + number * rows * V;
    for (int64_t r = 0; r < rows; ++r) std::copy_n(state + padded_row(r) * vp, V, memory + r * V);
  }
  if (to.mass == nullptr) return;
  for (int64_t r = 0; r < rows; ++r) to.mass[number * rows + r] = state[mp * vp + padded_row(r)];
}

template <typename T>
void Kernel<T>::accumulate(int64_t n, const T* left, const T* right, const T* weights,
                           T* state) const {
  tile_gemm<T>(m, vp, n, T(1), {left, mp, true}, {right, vp}, Write::accumulate, state, vp);
  add_rows(n, left, weights, state + mp * vp);
}

template <typename T>
void Kernel<T>::add_rows(int64_t n, const T* rows, const T* weights, T* mass) const {
  for (int64_t c = 0; c < mp; c += kLanes<T>) {
    // By themselves first: so a long sum loses fewer digits.
    Vector<T> sum = {};
    for (int64_t i = 0; i < n; ++i) {
      sum += (weights == nullptr ? T(1) : weights[i]) * simd::load(rows + i * mp + c);
    }
    simd::store(mass + c, simd::load(mass + c) + sum);
  }
}

template <typename T>
Partials<T>::Partials(const std::vector<chunked::Split>& splits, int64_t heads, int64_t state_size)
    : heads_(heads), state_size_(state_size) {
  const bool any_split = std::any_of(splits.begin(), splits.end(),
                                     [](const chunked::Split& s) { return s.count > 1; });
  if (any_split) sums_.resize(splits.size() * static_cast<size_t>(heads * state_size));
}

template <typename T>
void Partials<T>::add(int64_t split, int64_t head, T* state) {
  const T* sum = at(split, head);
  for (int64_t i = 0; i < state_size_; ++i) state[i] += sum[i];
}

template <typename T>
void Partials<T>::add_before(const std::vector<chunked::Split>& splits, int64_t split, int64_t head,
                             T* state) {
  for (int64_t s = splits[split].first; s < split; ++s) add(s, head, state);
}

template <typename T>
void Partials<T>::add_after(const std::vector<chunked::Split>& splits, int64_t split, int64_t head,
                            T* state) {
  const int64_t last = splits[split].first + splits[split].count - 1;
  for (int64_t s = last; s > split; --s) add(s, head, state);
}

#define LINNET_INSTANTIATE(T) \
  template struct Kernel<T>;  \
  template class Partials<T>;
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet::linear_attention_detail
