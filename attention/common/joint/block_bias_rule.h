// Biases by distance in a block, as functions that the CPU and the device share.
#pragma once

#include "attention/common/joint/key_lists.h"

namespace linnet::block_bias_rule {

// For lists of kind `block` with positions that begin at `first`, or at each document.
struct Places {
  KeyLists rule;
  int64_t tokens, rows, heads, distances;
  const int32_t* documents;  // [rows,tokens], or null

  constexpr int64_t position(int64_t row, int64_t t) const {
    return documents == nullptr ? rule.first + t : t - documents[row * tokens + t];
  }
  // The number of the distance of place 0 of a query's list: later places follow.
  constexpr int64_t number(int64_t row, int64_t t) const {
    return rule.size - 1 - position(row, t) % rule.size;
  }
  template <typename T>
  constexpr T bias(const T* values, int64_t i) const {
    const int64_t place = i % rule.length, t = i / rule.length % tokens;
    const int64_t h = i / rule.length / tokens % heads, row = i / rule.length / tokens / heads;
    return values[(number(row, t) + place) * heads + h];
  }
  // The gradient of value i = (distance, head).
  template <typename T>
  constexpr T dvalue(const T* dbias, int64_t i) const {
    const int64_t h = i % heads, d = i / heads;
    T total = 0;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t t = 0; t < tokens; ++t) {
        const int64_t place = d - number(row, t);
        if (place < 0 || place >= rule.length) continue;
        total += dbias[((row * heads + h) * tokens + t) * rule.length + place];
      }
    }
    return total;
  }
};

}  // namespace linnet::block_bias_rule
