// Pattern, weights and draws of dropout of block attention, as pure functions that the CPU's and
// the device's kernels share: segments are sequences whose queries see a contiguous range of keys
// each.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "attention/primitives/block_attention/cpu.h"

namespace linnet::block_attention_detail {

// One sequence: queries r = 0..queries of a row, and keys u = 0..past + keys, past ones first.
struct Segment {
  int64_t row, query_begin, queries, key_begin, keys, past;
  // Absolute position of query 0; past - start of the keys stand before position 0.
  int64_t start;
  // Times of query 0 and of key 0, for draws.
  int64_t query_time, key_time;
  constexpr int64_t all_keys() const { return past + keys; }
};

struct KeyRange {
  int64_t begin, end;
};

// The keys that query r sees, as a range of u.
constexpr KeyRange visible_keys(const Segment& segment, const BlockAttentionOptions& options,
                                int64_t r) {
  const int64_t own = segment.past + r;
  KeyRange range{0, options.causal ? own + 1 : segment.all_keys()};
  if (options.pattern == BlockPattern::band) {
    range.begin = own - options.left;
    if (!options.causal) range.end = own + options.right + 1;
  } else if (options.pattern == BlockPattern::blocks) {
    range.begin = own - (segment.start + r) % options.block;
    if (!options.causal) range.end = range.begin + options.block;
  }
  range.begin = std::max(range.begin, std::max<int64_t>(0, segment.past - segment.start));
  range.end = std::max(std::min(range.end, segment.all_keys()), range.begin);
  return range;
}

// The queries that see key u, as a range of r: the same relation from the other side.
constexpr KeyRange visible_queries(const Segment& segment, const BlockAttentionOptions& options,
                                   int64_t u) {
  const int64_t own = u - segment.past;  // the query at the key's own position
  const int64_t position = segment.start + own;
  KeyRange range{options.causal ? own : 0, segment.queries};
  if (options.pattern == BlockPattern::band) {
    range.end = own + options.left + 1;
    if (!options.causal) range.begin = own - options.right;
  } else if (options.pattern == BlockPattern::blocks) {
    const int64_t first = own - position % options.block;
    range.end = first + options.block;
    if (!options.causal) range.begin = first;
  }
  range.begin = std::max<int64_t>(range.begin, 0);
  range.end = position < 0 ? range.begin : std::min(range.end, segment.queries);
  range.end = std::max(range.end, range.begin);
  return range;
}

// An unnormalised weight and its derivative by the logit (of collision: the surrogate). NaN stays
// NaN, -infinity gives 0.
template <typename T>
struct PlainWeight {
  T value, slope;
};
template <typename T>
constexpr PlainWeight<T> plain_weight(const BlockAttentionOptions& options, T logit) {
  constexpr double kPi = std::numbers::pi;
  if (options.weights == BlockWeights::laplace) {
    // (x - m) / (d sqrt 2) with m = sqrt(1/2), d = sqrt(1 / 4 pi).
    const T kSteepness = static_cast<T>(2.506628274631000502);  // sqrt(2 pi)
    const T kMiddle = static_cast<T>(std::numbers::sqrt2 / 2);
    const T z = kSteepness * (logit - kMiddle);
    return {(1 + std::erf(z)) / 2,
            kSteepness * static_cast<T>(std::numbers::inv_sqrtpi) * std::exp(-z * z)};
  }
  if (options.weights == BlockWeights::identity) {
    const bool seen = logit != -std::numeric_limits<T>::infinity();
    return {seen ? logit : T{0}, seen ? T{1} : T{0}};
  }
  const bool exact = options.weights == BlockWeights::collision_exact;
  if (options.weights == BlockWeights::collision || exact) {
    const T x = logit > 1 ? T{1} : logit < -1 ? T{-1} : logit;
    const T exponent = static_cast<T>(options.exponent);
    const T share = 1 - std::acos(x) / static_cast<T>(kPi);
    const T weight = std::pow(share, exponent);
    if (!exact) return {weight, exponent / 2 * weight};
    // Constant where it was brought into [-1, 1], as for a key that is not seen.
    const T slope = exponent * std::pow(share, exponent - 1) /
                    (static_cast<T>(kPi) * std::sqrt((1 - x) * (1 + x)));
    return {weight, x == -1 || x == 1 ? T{0} : slope};
  }
  if (options.weights == BlockWeights::exponential) {
    const T weight = std::exp(logit > 0 ? T{0} : logit);
    return {weight, logit > 0 ? T{0} : weight};
  }
  const T x = logit < 0 ? T{0} : logit;
  if (options.weights == BlockWeights::relu) return {x, logit > 0 ? T{1} : T{0}};
  return {x * x, 2 * x};
}

// Keeps or drops the weights of one head of one example, as BlockAttentionOptions says; the words
// of four consecutive key times come from one draw.
struct DropoutDraws {
  uint32_t threshold;
  double keep_scale;
  RandomKey key;
  uint64_t example;

  constexpr DropoutDraws(const BlockAttentionOptions& options, int64_t example_id, int64_t head)
      : threshold(static_cast<uint32_t>(options.dropout * 0x1p32)),
        keep_scale(1.0 / (1.0 - options.dropout)),
        key(options.dropout_key),
        example(static_cast<uint64_t>(example_id)) {
    key.site = site_of(options.dropout_key, head);
  }
  // Where the draws of a head are.
  static constexpr uint64_t site_of(const RandomKey& key, int64_t head) {
    return key.site + 0x9E3779B97F4A7C15u * static_cast<uint64_t>(head + 1);
  }
  constexpr uint64_t element(int64_t query_time, int64_t key_time) const {
    return (example << 40) + (static_cast<uint64_t>(query_time) << 20) +
           (static_cast<uint64_t>(key_time) >> 2);
  }
  constexpr bool keeps(int64_t query_time, int64_t key_time) const {
    return key.words(element(query_time, key_time))[key_time & 3] >= threshold;
  }
};

}  // namespace linnet::block_attention_detail
