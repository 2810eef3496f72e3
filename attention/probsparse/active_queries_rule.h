// How much a query stands out, as pure functions that the CPU and the device share.
#pragma once

#include <cstdint>
#include <limits>

#include "core/random.h"

namespace linnet::active_queries_rule {

// c ceil(ln n) of n, at least 1, at most all: sampled keys of a query, and exact queries.
constexpr int64_t sample_count(int64_t n, int64_t factor) {
  int64_t steps = 0;
  for (double power = 1; power < static_cast<double>(n); power *= 2.718281828459045) ++steps;
  const int64_t wanted = factor * steps > 1 ? factor * steps : 1;
  return wanted < n ? wanted : n;
}

// The number of a draw: the same for every example and head, whatever the length.
constexpr uint64_t draw_element(int64_t query, int64_t sample) {
  return random_element(0, static_cast<uint64_t>(query), static_cast<uint64_t>(sample), 1 << 16);
}

template <typename T>
struct Queries {
  int64_t tokens, sources, heads, width, factor;
  const T *q, *k;                  // [B,T,H,K], [B,S,H,K]
  const uint8_t* valid;            // queries, [B,T]; null: all
  const int32_t *places, *counts;  // [B,S]: the valid keys of a row in order; [B]; null: all
  const int32_t* query_counts;     // [B]: valid queries; null: all
  const double* draws;             // [T,columns] in [0, 1); null: made from the key
  int64_t columns;
  RandomKey key;

  // Valid keys, and valid queries.
  constexpr int64_t count(int64_t b) const { return counts == nullptr ? sources : counts[b]; }
  constexpr int64_t queries(int64_t b) const {
    return query_counts == nullptr ? tokens : query_counts[b];
  }

  constexpr bool is_valid(int64_t b, int64_t t) const {
    return valid == nullptr || valid[b * tokens + t] != 0;
  }
  // The key that query t of row b samples as its s-th, which all heads share.
  constexpr int64_t sampled_key(int64_t b, int64_t t, int64_t s) const {
    const int64_t n = count(b);
    const double draw = draws == nullptr ? key.uniform(draw_element(t, s)) : draws[t * columns + s];
    const double place = draw * static_cast<double>(n);
    const bool inside = place >= 0 && place < static_cast<double>(n);
    const int64_t rank = inside ? static_cast<int64_t>(place) : n - 1;
    return places == nullptr ? rank : places[b * sources + rank];
  }

  // For query i = (b, h, t): -(max - sum / n) of its products with the keys key_of(s), so that the
  // first in ascending order stands out most; infinite where it is padding, 0 where there is no
  // key. The products are summed in double.
  template <typename KeyOf>
  constexpr float order(int64_t i, const KeyOf& key_of) const {
    const int64_t t = i % tokens, h = i / tokens % heads, b = i / tokens / heads;
    if (!is_valid(b, t)) return std::numeric_limits<float>::infinity();
    const int64_t n = count(b), samples = sample_count(n, factor);
    if (n == 0) return 0;
    const T* query = q + ((b * tokens + t) * heads + h) * width;
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    // Several products at a time: each addition depends on the one before it.
    constexpr int64_t kAtOnce = 4;
    for (int64_t s = 0; s < samples; s += kAtOnce) {
      const int64_t taken = samples - s < kAtOnce ? samples - s : kAtOnce;
      const T* keys[kAtOnce]{};
      double products[kAtOnce]{};
      for (int64_t a = 0; a < kAtOnce; ++a) {
        keys[a] = k + ((b * sources + key_of(a < taken ? s + a : s)) * heads + h) * width;
      }
      for (int64_t c = 0; c < width; ++c) {
        const auto number = static_cast<double>(query[c]);
        for (int64_t a = 0; a < kAtOnce; ++a)
          products[a] += number * static_cast<double>(keys[a][c]);
      }
      for (int64_t a = 0; a < taken; ++a) {
        largest = products[a] > largest ? products[a] : largest;
        sum += products[a];
      }
    }
    return static_cast<float>(sum / static_cast<double>(n) - largest);
  }
  constexpr float order(int64_t i) const {
    const int64_t t = i % tokens, b = i / tokens / heads;
    return order(i, [&](int64_t s) { return sampled_key(b, t, s); });
  }

  // The query of rank r among `most` of head (b, h), of the row's ascending order; -1: the row has
  // fewer.
  constexpr int32_t active(const int32_t* sorted, int64_t most, int64_t i) const {
    const int64_t rank = i % most, head = i / most;
    const bool taken = rank < sample_count(queries(head / heads), factor);
    return taken ? sorted[head * tokens + rank] : -1;
  }
};

}  // namespace linnet::active_queries_rule
