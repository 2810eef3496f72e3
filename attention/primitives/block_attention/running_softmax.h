// The softmax of a tile of queries while tiles of keys pass by. Logits are kept transposed (keys in
// rows, queries in vector lanes), so that it runs along vectors without shuffles.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "attention/primitives/block_attention/tiles.h"
#include "attention/primitives/common/simd.h"

namespace linnet::block_attention_detail {

// The running maximum and sum of every query of a tile, and its weighted values so far.
template <typename T>
struct RunningSoftmax {
  alignas(64) T maximum[kQueries];
  alignas(64) T sum[kQueries];
  alignas(64) T rescale[kQueries];
  T* weighted = nullptr;  // [kQueries, v_stride]

  void reset() {
    std::fill(maximum, maximum + kQueries, -std::numeric_limits<T>::infinity());
    std::fill(sum, sum + kQueries, T{0});
  }

  // Turns logits [keys, kQueries] into exp(logit - maximum); true when an old maximum grew.
  bool absorb(int64_t keys, int64_t lanes, T* logits) {
    const auto nothing = simd::broadcast<T>(-std::numeric_limits<T>::infinity());
    bool grew = false;
    alignas(64) T largest[kQueries];
    std::copy_n(maximum, lanes, largest);
    // Keys outside: all lanes are independent chains of comparisons.
    for (int64_t j = 0; j < keys; ++j) {
      const T* row = logits + j * kQueries;
      for (int64_t lane = 0; lane < lanes; ++lane) {
        largest[lane] = largest[lane] > row[lane] ? largest[lane] : row[lane];
      }
    }
    for (int64_t lane = 0; lane < lanes; lane += simd::kLanes<T>) {
      const auto before = simd::load(maximum + lane), now = simd::load(largest + lane);
      // A query that has seen no key yet: any finite shift keeps exp(-infinity) = 0.
      const auto shift = now == nothing ? simd::broadcast<T>(0) : now;
      const auto factor = simd::exp<T>(before - shift);
      auto total = simd::load(sum + lane) * factor;
      for (int64_t j = 0; j < keys; ++j) {
        T* place = logits + j * kQueries + lane;
        const auto weight = simd::exp<T>(simd::load(place) - shift);
        total += weight;
        simd::store(place, weight);
      }
      simd::store(maximum + lane, now);
      simd::store(sum + lane, total);
      simd::store(rescale + lane, factor);
      for (int64_t i = 0; i < simd::kLanes<T>; ++i) grew = grew || factor[i] != T{1};
    }
    return grew;
  }
};

}  // namespace linnet::block_attention_detail
