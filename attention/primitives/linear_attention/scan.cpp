// Causal linear attention without decay, or with one per channel: scans along the tokens with the
// state in registers (state_scan.h). y and dq are read from S on its way forward, dk and dv from
// R_j = sum_{i >= j} phi(q_i) G_i^T on its way back. Backward goes from block to block, last to
// first, beginning with the S before each that forward kept. Query heads that share a key head scan
// one after the other: each has S from the key head, and its own share of R, which is a sum over
// them.
//
// Multiply-adds per token and head: 2 m V forward, 6 m V backward. Elements from and to memory: 2 K
// + 2 V forward, 4 K + 4 V backward, m (V + 1) / 256 of kept states each. At K = V = m = 64 that is
// ten multiply-adds a byte, so registers bound it. A decay takes as many multiplications as an
// update has multiply-adds: S_t = diag(a_t) S_{t-1} + ..., and before the scan goes back past token
// t, R <- diag(a_t) R.
#include "attention/primitives/common/state_scan.h"
#include "attention/primitives/linear_attention/causal.h"

namespace linnet::linear_attention_detail {
namespace {

using simd::kLanes;
using simd::Vector;

// Tokens of a tile, whose features are made together.
constexpr int64_t kTokens = chunked::kChunk;
static_assert(kBlockTokens % kTokens == 0);
// States of thousands of tokens keep their digits.
constexpr ScanSums kSums = ScanSums::of_tile;

// Rows of a tile in scratch, while those of a head from token t on are prefetched.
template <typename E>
TileRows<E> prefetching(E* data, int64_t stride, const SequenceView<E>& view, int64_t row,
                        int64_t t, int64_t head) {
  if (!view || t < 0) return {data, stride};
  return {data, stride, 0, view.at(row, 0, head) + t * view.time_stride, view.time_stride};
}

// Decay of the rows of S and R [mp, vp], or of the columns of their transposes; factors [n, mp] or
// null.
template <typename T>
ScanDecay<T> row_decay(const Kernel<T>& kernel, const T* factors) {
  return {factors, kernel.mp, false};
}
template <typename T>
ScanDecay<T> column_decay(const Kernel<T>& kernel, const T* factors) {
  return {factors, kernel.mp, true};
}

// The denominators' part of a state, z or that of R. The tokens of a tile are added to each other
// first, as in the scans. Factors [n, mp]; null: nothing decays.

template <typename T>
void decay_by(const T* factors, int64_t at, Vector<T>& before, Vector<T>& sum) {
  if (factors == nullptr) return;
  before *= simd::load(factors + at);
  sum *= simd::load(factors + at);
}

// out_i = queries_i . z with z += keys_i before; out [padded(n)], sums [mp] in scratch.
template <typename T>
void scan_denominators(const Kernel<T>& kernel, int64_t n, const T* keys, const T* queries,
                       const T* factors, T* mass, T* sums, T* out) {
  const int64_t mp = kernel.mp;
  std::fill_n(sums, mp, T(0));
  for (int64_t first = 0; first < n; first += kLanes<T>) {
    Vector<T> rows[kLanes<T>] = {};
    const int64_t count = std::min(kLanes<T>, n - first);
    for (int64_t c = 0; c < mp; c += kLanes<T>) {
      Vector<T> before = simd::load(mass + c);
      Vector<T> sum = simd::load(sums + c);
      for (int64_t r = 0; r < count; ++r) {
        decay_by(factors, (first + r) * mp + c, before, sum);
        sum += simd::load(keys + (first + r) * mp + c);
        rows[r] += simd::load(queries + (first + r) * mp + c) * (before + sum);
      }
      simd::store(sums + c, sum);
      simd::store(mass + c, before);
    }
    simd::store(out + first, simd::row_sums<T>(rows));
  }
  axpy_row(mp, T(1), sums, mass);
}

// dqueries_i += dden_i z with z += keys_i before.
template <typename T>
void add_normalizer_to_queries(const Kernel<T>& kernel, int64_t n, const T* keys,
                               const T* ddenominators, const T* factors, T* mass, T* dqueries) {
  const int64_t mp = kernel.mp;
  for (int64_t c = 0; c < mp; c += kLanes<T>) {
    Vector<T> before = simd::load(mass + c);
    Vector<T> sum = {};
    for (int64_t i = 0; i < n; ++i) {
      T* to = dqueries + i * mp + c;
      decay_by(factors, i * mp + c, before, sum);
      sum += simd::load(keys + i * mp + c);
      simd::store(to, simd::load(to) + ddenominators[i] * (before + sum));
    }
    simd::store(mass + c, before + sum);
  }
}

// dkeys_i += r with r += dden_i queries_i before, from the last one to the first.
template <typename T>
void add_normalizer_to_keys(const Kernel<T>& kernel, int64_t n, const T* queries,
                            const T* ddenominators, const T* factors, T* mass, T* dkeys) {
  const int64_t mp = kernel.mp;
  for (int64_t c = 0; c < mp; c += kLanes<T>) {
    Vector<T> before = simd::load(mass + c);
    Vector<T> sum = {};
    for (int64_t i = n - 1; i >= 0; --i) {
      T* to = dkeys + i * mp + c;
      sum += ddenominators[i] * simd::load(queries + i * mp + c);
      simd::store(to, simd::load(to) + (before + sum));
      decay_by(factors, i * mp + c, before, sum);
    }
    simd::store(mass + c, before + sum);
  }
}

// terms_i += sign features_i dfeatures_i, element by element; all [n, mp].
template <typename T>
void add_decay_terms(int64_t elements, T sign, const T* features, const T* dfeatures, T* terms) {
  for (int64_t i = 0; i < elements; ++i) terms[i] += sign * features[i] * dfeatures[i];
}

// Backward of one key head, block by block. Tiles hold a block's tokens, those of queries one query
// head's after the other's.
template <typename T>
class GradientScan {
 public:
  // dstate: the gradient of the state after the tokens, R [mp, vp] and its normalizer [mp], which
  // goes back along them.
  GradientScan(const Kernel<T>& kernel, int64_t row, int64_t key_head, const Outputs<T>& outputs,
               const LinearAttentionGradients<T>& gradients, T* dstate, Scratch<T>& scratch);

  // Gradients of tokens begin ... end - 1, `state` being the one before them.
  void block(int64_t begin, int64_t end, const T* state);

 private:
  T* cleared_angles(int64_t n) const;
  const T* factors(int64_t at) const {
    return factors_ == nullptr ? nullptr : factors_ + at * kernel_.mp;
  }
  // dq, with the features of the tokens and G, which key_gradients reads.
  void query_gradients(int64_t begin, int64_t end);
  void key_gradients(int64_t begin, int64_t end);
  // Scans of the queries of one head in a tile of n tokens, `at` tokens into the block: what they
  // add to dk and dv.
  void read_queries(int64_t group_head, int64_t t, int64_t at, int64_t n, T* readers,
                    T* transposed);
  // The inner products of the rows of `state` and those of R, before a block.
  void sum_rows(const T* state);

  const Kernel<T>& kernel_;
  const int64_t row_, head_;
  const Outputs<T>& outputs_;
  const LinearAttentionGradients<T>& gradients_;
  FeatureTile<T> keys_, queries_;
  T *values_, *G_, *ddenominators_;
  T* factors_;     // of the channels, or null
  T* terms_;       // of the gradients of their log-decays, where wanted
  T* dfeatures_;   // of a tile
  T* dvalues_;     // of a tile
  T* angles_;      // their gradients in a tile, where wanted
  T* state_;       // S^T [vp, mp] and z [mp]
  T* readers_;     // R [mp, vp] and its normalizer [mp]
  T* transposed_;  // R^T [vp, mp]
  // Where query heads share the key head: a state and two shares of R, of one of them in a tile.
  T *own_state_, *own_readers_, *own_transposed_;
  std::vector<double> sums_;  // [kp], where terms_ are wanted
};

template <typename T>
GradientScan<T>::GradientScan(const Kernel<T>& kernel, int64_t row, int64_t key_head,
                              const Outputs<T>& outputs,
                              const LinearAttentionGradients<T>& gradients, T* dstate,
                              Scratch<T>& scratch)
    : kernel_(kernel),
      row_(row),
      head_(key_head),
      outputs_(outputs),
      gradients_(gradients),
      keys_(kernel.take_features(scratch, kBlockTokens)),
      queries_(kernel.take_features(scratch, kernel.group * kBlockTokens)),
      values_(scratch.take(kBlockTokens * kernel.vp)),
      G_(scratch.take(kernel.group * kBlockTokens * kernel.vp)),
      ddenominators_(scratch.take(kernel.group * kBlockTokens)),
      factors_(kernel.inputs.channel_decay ? scratch.take(kBlockTokens * kernel.mp) : nullptr),
      terms_(gradients.log_decay != nullptr ? scratch.take(kBlockTokens * kernel.mp) : nullptr),
      dfeatures_(scratch.take(kTokens * kernel.mp)),
      dvalues_(scratch.take(kTokens * kernel.vp)),
      angles_(gradients.query_proportions != nullptr || gradients.key_proportions != nullptr
                  ? scratch.take(kTokens)
                  : nullptr),
      state_(scratch.take(kernel.state_size())),
      readers_(dstate),
      transposed_(scratch.take(kernel.vp * kernel.mp)),
      own_state_(kernel.group > 1 ? scratch.take(kernel.state_size()) : nullptr),
      own_readers_(kernel.group > 1 ? scratch.take(kernel.state_size()) : nullptr),
      own_transposed_(kernel.group > 1 ? scratch.take(kernel.vp * kernel.mp) : nullptr),
      sums_(static_cast<size_t>(terms_ == nullptr ? 0 : kernel.kp)) {
  chunked::transpose(dstate, kernel.vp, kernel.mp, kernel.vp, transposed_, kernel.mp);
}

template <typename T>
void GradientScan<T>::block(int64_t begin, int64_t end, const T* state) {
  const int64_t mp = kernel_.mp, vp = kernel_.vp;
  chunked::transpose(state, vp, mp, vp, state_, mp);
  std::copy_n(state + mp * vp, mp, state_ + vp * mp);
  if (terms_ != nullptr) std::fill_n(terms_, (end - begin) * mp, T(0));
  query_gradients(begin, end);
  key_gradients(begin, end);
  if (terms_ == nullptr) return;
  sum_rows(state);
  store_channel_decay_gradients(kernel_, row_, begin, end, head_, terms_, sums_.data(),
                                gradients_.log_decay);
}

template <typename T>
void GradientScan<T>::sum_rows(const T* state) {
  const int64_t mp = kernel_.mp, vp = kernel_.vp;
  const T *mass = state + mp * vp, *dmass = readers_ + mp * vp;
  for (int64_t r = 0; r < kernel_.K; ++r) {
    double sum = static_cast<double>(mass[r] * dmass[r]);
    for (int64_t c = 0; c < vp; ++c) {
      sum += static_cast<double>(state[r * vp + c] * readers_[r * vp + c]);
    }
    sums_[static_cast<size_t>(r)] = sum;
  }
}

template <typename T>
T* GradientScan<T>::cleared_angles(int64_t n) const {
  if (angles_ != nullptr) std::fill_n(angles_, n, T(0));
  return angles_;
}

template <typename T>
void GradientScan<T>::query_gradients(int64_t begin, int64_t end) {
  const int64_t mp = kernel_.mp, vp = kernel_.vp, size = kernel_.state_size();
  for (int64_t t = begin; t < end; t += kTokens) {
    const int64_t n = std::min(kTokens, end - t), at = t - begin;
    const FeatureTile<T> keys = kernel_.from_token(keys_, at);
    T* values = values_ + at * vp;
    kernel_.load_features(Side::key, row_, t, n, head_, keys);
    kernel_.load_values(row_, t, n, head_, values);
    if (factors_ != nullptr) {
      load_channel_factors(kernel_, row_, t, n, head_, factors_ + at * mp);
    }
    for (int64_t g = 0; g < kernel_.group; ++g) {
      const int64_t h = head_ * kernel_.group + g, place = g * kBlockTokens + at;
      const FeatureTile<T> queries = kernel_.from_token(queries_, place);
      T *G = G_ + place * vp, *ddenominators = ddenominators_ + place;
      T* state = g + 1 == kernel_.group ? state_ : std::copy_n(state_, size, own_state_) - size;
      kernel_.load_features(Side::query, row_, t, n, h, queries);
      kernel_.load_output_gradients(row_, t, n, h, outputs_.y, outputs_.denominators, outputs_.dy,
                                    G, ddenominators);
      state_scan<T>(ScanOrder::forward, n, vp, mp, {values, vp}, {keys.features, mp}, {G, vp},
                    state, Write::overwrite, prefetching(dfeatures_, mp, gradients_.q, row_, t, h),
                    kSums, column_decay(kernel_, factors(at)));
      if (kernel_.normalized) {
        add_normalizer_to_queries(kernel_, n, keys.features, ddenominators, factors(at),
                                  state + vp * mp, dfeatures_);
      }
      T* dangles = cleared_angles(n);
      kernel_.fold_gradients(n, queries, dfeatures_, dangles);
      if (terms_ != nullptr) {
        add_decay_terms(n * mp, T(-1), queries.features, dfeatures_, terms_ + at * mp);
      }
      kernel_.store_feature_gradients(Side::query, row_, t, n, h, queries, dfeatures_,
                                      gradients_.q);
      kernel_.store_proportion_gradients(Side::query, row_, t, n, h, dangles,
                                         gradients_.query_proportions);
    }
  }
}

template <typename T>
void GradientScan<T>::read_queries(int64_t group_head, int64_t t, int64_t at, int64_t n, T* readers,
                                   T* transposed) {
  const int64_t mp = kernel_.mp, vp = kernel_.vp, place = group_head * kBlockTokens + at;
  const int64_t h = head_ * kernel_.group + group_head;
  const auto& in = kernel_.inputs;
  const T *queries = queries_.features + place * mp, *keys = keys_.features + at * mp;
  const T *values = values_ + at * vp, *G = G_ + place * vp;
  const Write write = group_head == 0 ? Write::overwrite : Write::accumulate;
  // Prefetches the rows of the block before this one.
  const int64_t before = t - kBlockTokens;
  state_scan<T>(ScanOrder::backward, n, mp, vp, prefetching(queries, mp, in.q, row_, before, h),
                prefetching(G, vp, outputs_.dy, row_, before, h),
                prefetching(keys, mp, in.k, row_, before, head_), readers, write,
                prefetching(dvalues_, vp, gradients_.v, row_, t, head_), kSums,
                row_decay(kernel_, factors(at)));
  state_scan<T>(ScanOrder::backward, n, vp, mp, prefetching(G, vp, outputs_.y, row_, before, h),
                {queries, mp}, prefetching(values, vp, in.v, row_, before, head_), transposed,
                write, prefetching(dfeatures_, mp, gradients_.k, row_, t, head_), kSums,
                column_decay(kernel_, factors(at)));
  add_normalizer_to_keys(kernel_, n, queries, ddenominators_ + place, factors(at),
                         readers + mp * vp, dfeatures_);
}

template <typename T>
void GradientScan<T>::key_gradients(int64_t begin, int64_t end) {
  const int64_t mp = kernel_.mp, vp = kernel_.vp, size = kernel_.state_size();
  for (int64_t at = (end - begin - 1) / kTokens * kTokens; at >= 0; at -= kTokens) {
    const int64_t t = begin + at, n = std::min(kTokens, end - t);
    const FeatureTile<T> keys = kernel_.from_token(keys_, at);
    read_queries(0, t, at, n, readers_, transposed_);
    for (int64_t g = 1; g < kernel_.group; ++g) {
      std::fill_n(own_readers_, size, T(0));
      std::fill_n(own_transposed_, vp * mp, T(0));
      read_queries(g, t, at, n, own_readers_, own_transposed_);
      axpy_row(size, T(1), own_readers_, readers_);
      axpy_row(vp * mp, T(1), own_transposed_, transposed_);
    }
    T* dangles = cleared_angles(n);
    kernel_.fold_gradients(n, keys, dfeatures_, dangles);
    if (terms_ != nullptr) {
      add_decay_terms(n * mp, T(1), keys.features, dfeatures_, terms_ + at * mp);
    }
    kernel_.store_feature_gradients(Side::key, row_, t, n, head_, keys, dfeatures_, gradients_.k);
    kernel_.store_proportion_gradients(Side::key, row_, t, n, head_, dangles,
                                       gradients_.key_proportions);
    if (gradients_.v) kernel_.store_value_gradients(row_, t, n, head_, dvalues_, gradients_.v);
  }
}

}  // namespace

template <typename T>
void scan_outputs(const Causal<T>& call, const Split& split, int64_t key_head, T* state,
                  Scratch<T> scratch, SequenceView<T> y, T* denominators, T* kept) {
  const Kernel<T>& kernel = call.kernel;
  const LinearAttentionInputs<T>& in = kernel.inputs;
  const Span& span = call.spans[split.span];
  const int64_t row = span.row, mp = kernel.mp, vp = kernel.vp, size = kernel.state_size();
  const FeatureTile<T> keys = kernel.take_features(scratch, kTokens),
                       queries = kernel.take_features(scratch, kTokens);
  T* values = scratch.take(kTokens * vp);
  T* numerators = scratch.take(kTokens * vp);
  T* row_denominators = scratch.take(kTokens);
  T* mass_sums = scratch.take(mp);
  T* factors = in.channel_decay ? scratch.take(kTokens * mp) : nullptr;
  T* own_state = kernel.group > 1 ? scratch.take(size) : nullptr;
  const int64_t end_head = (key_head + 1) * kernel.group;
  for (int64_t t = split.begin; t < split.end; t += kTokens) {
    const int64_t n = std::min(kTokens, split.end - t), next = t + kTokens;
    if (kept != nullptr && t > span.begin && (t - span.begin) % kBlockTokens == 0) {
      std::copy_n(state, size, call.kept_at(kept, split.span, t, key_head));
    }
    kernel.load_features(Side::key, row, t, n, key_head, keys);
    kernel.load_values(row, t, n, key_head, values);
    if (factors != nullptr) load_channel_factors(kernel, row, t, n, key_head, factors);
    for (int64_t h = key_head * kernel.group; h < end_head; ++h) {
      T* scanned = h + 1 == end_head ? state : std::copy_n(state, size, own_state) - size;
      kernel.load_features(Side::query, row, t, n, h, queries);
      state_scan<T>(ScanOrder::forward, n, mp, vp,
                    prefetching<const T>(keys.features, mp, in.k, row, next, key_head),
                    prefetching<const T>(values, vp, in.v, row, next, key_head),
                    prefetching<const T>(queries.features, mp, in.q, row, next, h), scanned,
                    Write::overwrite, prefetching(numerators, vp, y, row, t, h), kSums,
                    row_decay<T>(kernel, factors));
      T* mass = scanned + mp * vp;
      if (kernel.normalized || factors != nullptr) {
        scan_denominators<T>(kernel, n, keys.features, queries.features, factors, mass, mass_sums,
                             row_denominators);
      } else {
        kernel.add_rows(n, keys.features, nullptr, mass);
      }
      kernel.store_outputs(row, t, n, h, numerators, row_denominators, y, denominators);
    }
  }
}

template <typename T>
void scan_gradients(const Causal<T>& call, const Split& split, int64_t key_head, const T* state,
                    const Outputs<T>& outputs, const T* kept, T* dstate, Scratch<T> scratch,
                    const LinearAttentionGradients<T>& gradients) {
  const Span& span = call.spans[split.span];
  GradientScan<T> scan(call.kernel, span.row, key_head, outputs, gradients, dstate, scratch);
  const int64_t blocks = (split.end - split.begin + kBlockTokens - 1) / kBlockTokens;
  for (int64_t block = blocks - 1; block >= 0; --block) {
    const int64_t begin = split.begin + block * kBlockTokens;
    scan.block(begin, std::min(split.end, begin + kBlockTokens),
               begin == span.begin ? state : call.kept_at(kept, split.span, begin, key_head));
  }
}

#define LINNET_INSTANTIATE(T)                                                            \
  template void scan_outputs<T>(const Causal<T>&, const Split&, int64_t, T*, Scratch<T>, \
                                SequenceView<T>, T*, T*);                                \
  template void scan_gradients<T>(const Causal<T>&, const Split&, int64_t, const T*,     \
                                  const Outputs<T>&, const T*, T*, Scratch<T>,           \
                                  const LinearAttentionGradients<T>&);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet::linear_attention_detail
