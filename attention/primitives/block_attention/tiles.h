// Shared by the forward and backward kernels of block attention: the segments of a call, and a tile
// of queries or keys copied into the cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "attention/primitives/block_attention/pattern.h"
#include "attention/primitives/common/chunked.h"
#include "attention/primitives/common/simd.h"

namespace linnet::block_attention_detail {

// Queries (vector lanes) and keys of a tile.
inline constexpr int64_t kQueries = 64, kKeys = 64;

template <typename T>
std::vector<Segment> make_segments(const BlockAttentionInputs<T>& in) {
  std::vector<Segment> segments;
  if (in.spans.empty()) {
    for (int64_t b = 0; b < in.q.B; ++b)
      segments.push_back({b, 0, in.q.T, 0, in.k.T, 0, 0, in.time_of(b), 0});
  }
  for (const Span& span : in.spans) {
    const int64_t length = span.end - span.begin;
    const int64_t past = span.carries_in ? in.past_k.T : 0;
    const int64_t time = in.time_of(span.row) + span.begin;
    segments.push_back({span.row, span.begin, length, span.begin, length, past, span.start_position,
                        time, time - past});
  }
  return segments;
}

// Whether the pattern shows a query at most so many keys.
inline bool is_narrow(const BlockAttentionOptions& options, int64_t most) {
  const int64_t width = options.pattern == BlockPattern::band
                            ? options.left + (options.causal ? 0 : options.right) + 1
                            : options.block;
  return options.pattern != BlockPattern::full && width <= most;
}

// Queries of a tile: fewer where the pattern is so narrow that a wide tile would mostly be empty.
inline int64_t queries_per_tile(const BlockAttentionOptions& options) {
  return is_narrow(options, 32) ? kQueries / 2 : kQueries;
}

// Grows only, never shrinks: one per thread, split into aligned arrays by the kernels.
template <typename T>
class Workspace {
 public:
  void reserve(int64_t elements) {
    if (elements <= capacity_) return;
    owner_.reset(static_cast<T*>(
        ::operator new[](static_cast<size_t>(elements) * sizeof(T), std::align_val_t{64})));
    capacity_ = elements;
  }
  void rewind() { used_ = 0; }
  // An aligned array of n elements, undefined contents. The sum of all must have been reserved.
  T* take(int64_t n) {
    T* start = owner_.get() + used_;
    used_ += (n + 15) / 16 * 16;
    return start;
  }

 private:
  struct Delete {
    void operator()(T* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::unique_ptr<T[], Delete> owner_;
  int64_t capacity_ = 0, used_ = 0;
};

// to[0..padded) = from[0..n), zeros; padded is n rounded up to whole vectors. Prefetches the row
// `ahead` elements further on to be brought into the cache, since the processor does not foresee
// rows that lie a stride apart (prefetching beyond an array is harmless).
template <typename T>
inline void copy_padded(const T* from, int64_t n, T* to, int64_t padded, int64_t ahead) {
  int64_t i = 0;
  for (; i + simd::kLanes<T> <= n; i += simd::kLanes<T>) {
    __builtin_prefetch(from + ahead + i);
    simd::store(to + i, simd::load(from + i));
  }
  if (i < padded) simd::store(to + i, simd::load_partial(from + i, n - i));
}

// The bias of one head transposed, so that queries in ascending order read it in ascending order,
// with room for the masked corners of tiles: entry (i - j) + origin is bias(j - i).
template <typename T>
struct ReversedBias {
  static constexpr int64_t kMargin = 2 * (kQueries + kKeys);
  static int64_t elements(int64_t count) { return count + 2 * kMargin; }
  T* values = nullptr;
  int64_t origin = 0;

  void fill(const BlockAttentionInputs<T>& in, int64_t head) {
    if (values == nullptr) return;
    const T* bias = in.bias + (in.bias_heads == 1 ? 0 : head) * in.bias_count;
    origin = kMargin + in.bias_count - 1 - in.bias_origin;
    std::fill(values, values + elements(in.bias_count), T{0});
    for (int64_t x = 0; x < in.bias_count; ++x) values[kMargin + in.bias_count - 1 - x] = bias[x];
  }
};

// A tile of valid keys and their values, rows padded with zeros to whole vectors. Masked keys are
// left out rather than multiplied by zero, so their contents cannot matter.
template <typename T>
struct KeyTile {
  T* k = nullptr;  // [kKeys, k_stride]
  T* v = nullptr;  // [kKeys, v_stride]
  int64_t k_stride = 0, v_stride = 0;
  int64_t count = 0;
  int64_t index[kKeys];

  static int64_t elements(int64_t K, int64_t V) {
    return kKeys * (simd::round_up<T>(K) + simd::round_up<T>(V));
  }
  void allocate(Workspace<T>& workspace, int64_t K, int64_t V) {
    k_stride = simd::round_up<T>(K);
    v_stride = simd::round_up<T>(V);
    k = workspace.take(kKeys * k_stride);
    v = workspace.take(kKeys * v_stride);
  }
  // Takes the next valid keys from [begin, end); returns where the following tile begins. Keys
  // `ahead` of them are wanted next.
  int64_t gather(const BlockAttentionInputs<T>& in, const Segment& segment, int64_t group,
                 int64_t begin, int64_t end, int64_t ahead) {
    count = 0;
    int64_t u = begin;
    for (; u < end && count < kKeys; ++u) {
      const bool past = u < segment.past;
      const int64_t t = past ? u : segment.key_begin + u - segment.past;
      const SequenceView<const T>& keys = past ? in.past_k : in.k;
      const SequenceView<const T>& values = past ? in.past_v : in.v;
      if (!is_valid(past ? in.past_mask : in.key_mask, segment.row, t, keys.T)) continue;
      copy_padded(keys.at(segment.row, t, group), keys.K, k + count * k_stride, k_stride,
                  ahead * keys.time_stride);
      copy_padded(values.at(segment.row, t, group), values.K, v + count * v_stride, v_stride,
                  ahead * values.time_stride);
      index[count++] = u;
    }
    return u;
  }
};

// A tile of queries, one per vector lane. Masked and missing ones have q = 0 and see no key.
template <typename T>
struct QueryTile {
  using Integer = typename simd::Types<T>::Integer;
  using Number = decltype(Integer{}[0] + 0);

  int64_t first = 0, count = 0;
  // count rounded up to whole vectors.
  int64_t lanes = 0;
  bool valid[kQueries];
  // The keys of each query, and those of all of them: any key in `seen` is seen by a query, every
  // key in `common` by all valid ones.
  alignas(64) Number begin[kQueries];
  alignas(64) Number end[kQueries];
  KeyRange seen{}, common{};
  T* rows = nullptr;        // [kQueries, stride]
  T* transposed = nullptr;  // [stride, kQueries]
  int64_t stride = 0;       // K in whole vectors

  static int64_t elements(int64_t K) { return 2 * kQueries * simd::round_up<T>(K); }
  void allocate(Workspace<T>& workspace, int64_t K) {
    stride = simd::round_up<T>(K);
    rows = workspace.take(kQueries * stride);
    transposed = workspace.take(stride * kQueries);
  }

  // How far ahead of the keys of this tile those lie that are wanted next: in the next tile of
  // keys, or of queries.
  int64_t next_keys() const { return seen.end - seen.begin > 2 * kKeys ? kKeys : count; }

  void set(const BlockAttentionInputs<T>& in, const BlockAttentionOptions& options,
           const Segment& segment, int64_t head, int64_t first_query, int64_t query_count) {
    first = first_query;
    count = query_count;
    lanes = simd::round_up<T>(count);
    seen = {segment.all_keys(), 0};
    common = {0, segment.all_keys()};
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const int64_t t = segment.query_begin + first + lane;
      valid[lane] = lane < count && is_valid(in.query_mask, segment.row, t, in.q.T);
      begin[lane] = end[lane] = 0;
      if (!valid[lane]) {
        std::fill_n(rows + lane * stride, stride, T{0});
        continue;
      }
      const KeyRange range = visible_keys(segment, options, first + lane);
      begin[lane] = static_cast<Number>(range.begin);
      end[lane] = static_cast<Number>(range.end);
      seen = {std::min(seen.begin, range.begin), std::max(seen.end, range.end)};
      common = {std::max(common.begin, range.begin), std::min(common.end, range.end)};
      copy_padded(in.q.at(segment.row, t, head), in.q.K, rows + lane * stride, stride,
                  count * in.q.time_stride);
    }
    chunked::transpose(rows, stride, lanes, stride, transposed, kQueries);
    seen.end = std::max(seen.begin, seen.end);
  }

  // Whether every valid query of the tile sees every key of the other one.
  bool sees_all(const KeyTile<T>& keys) const {
    return common.begin <= keys.index[0] && keys.index[keys.count - 1] < common.end;
  }
};

// The draws of a tile of queries.
struct DropoutMask {
  DropoutDraws draws;

  DropoutMask(const BlockAttentionOptions& options, int64_t example, int64_t head)
      : draws(options, example, head) {}
  // factors[lane] = 0 or keep_scale for queries query_time + lane, lanes <= kQueries.
  template <typename T>
  void factors(int64_t query_time, int64_t lanes, int64_t key_time, T* out);

 private:
  // Words of the last draw: [4][kQueries], for the queries and the four keys named here.
  alignas(64) uint32_t words_[4][kQueries];
  int64_t drawn_query_ = -1, drawn_keys_ = -1;
};

template <typename T>
void DropoutMask::factors(int64_t query_time, int64_t lanes, int64_t key_time, T* out) {
  if (query_time != drawn_query_ || (key_time >> 2) != drawn_keys_) {
    drawn_query_ = query_time;
    drawn_keys_ = key_time >> 2;
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const auto drawn = draws.key.words(draws.element(query_time + lane, key_time));
      for (int word = 0; word < 4; ++word) words_[word][lane] = drawn[word];
    }
  }
  const uint32_t* words = words_[key_time & 3];
  for (int64_t lane = 0; lane < lanes; ++lane) {
    out[lane] = words[lane] >= draws.threshold ? static_cast<T>(draws.keep_scale) : T{0};
  }
}

// Turns the logits of a row of a tile, `lanes` of them, into unnormalised weights; their slopes are
// stored where there is room for them.
template <typename T>
void weigh_row(const BlockAttentionOptions& options, int64_t lanes, T* row, T* slopes) {
  if (options.weights == BlockWeights::exponential) {
    const auto zero = simd::broadcast<T>(0);
    for (int64_t lane = 0; lane < lanes; lane += simd::kLanes<T>) {
      const auto logit = simd::load(row + lane);
      const auto weight = simd::exp<T>(logit > zero ? zero : logit);
      simd::store(row + lane, weight);
      if (slopes != nullptr) simd::store(slopes + lane, logit > zero ? zero : weight);
    }
    return;
  }
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const PlainWeight<T> found = plain_weight(options, row[lane]);
    row[lane] = found.value;
    if (slopes != nullptr) slopes[lane] = found.slope;
  }
}

// Logits of a tile from raw products: adds the bias, and -infinity where a query does not see a
// key. logits [keys, kQueries], in place.
template <typename T>
void finish_logits(const QueryTile<T>& queries, const KeyTile<T>& keys, const Segment& segment,
                   const ReversedBias<T>& bias, T* logits) {
  using Integer = typename simd::Types<T>::Integer;
  const bool masked = !queries.sees_all(keys);
  if (!masked && bias.values == nullptr) return;
  const auto nothing = simd::broadcast<T>(-std::numeric_limits<T>::infinity());
  for (int64_t lane = 0; lane < queries.lanes; lane += simd::kLanes<T>) {
    Integer begin, end;
    std::memcpy(&begin, queries.begin + lane, sizeof(begin));
    std::memcpy(&end, queries.end + lane, sizeof(end));
    for (int64_t j = 0; j < keys.count; ++j) {
      T* place = logits + j * kQueries + lane;
      auto value = simd::load(place);
      if (bias.values != nullptr) {
        const int64_t distance = segment.past + queries.first + lane - keys.index[j];
        value += simd::load(bias.values + bias.origin + distance);
      }
      if (masked) {
        const auto u = static_cast<typename QueryTile<T>::Number>(keys.index[j]);
        value = ((begin <= u) & (u < end)) ? value : nothing;
      }
      simd::store(place, value);
    }
  }
}

}  // namespace linnet::block_attention_detail
