// Which keys sparse_fixed's queries see, as lists for listed_attention: places 0 ... block - 1 are
// the query's own block, the others the global columns in order.
#pragma once

#include "core/tensor.h"

namespace linnet {

// The global columns of every block: its first token and its last ones, or its last ones only.
struct Columns {
  int64_t block = 1, count = 0;
  bool with_first = true;

  // Column n of the sequence, n / count being its block.
  constexpr int64_t token(int64_t n) const {
    const int64_t inside = n % count, begin = n / count * block;
    if (with_first && inside == 0) return begin;
    return begin + block - count + inside;
  }
  constexpr int64_t in_first(int64_t tokens) const { return (tokens + block - 1) / block * count; }
};

struct FixedLists {
  Columns columns;
  // Queries are the last ones of the keys.
  int64_t keys = 0, queries = 0;
  bool causal = false;
  bool twice = false;  // columns in the query's own block are listed in both parts

  // Lists: of every block, or, causal, of every query.
  constexpr int64_t group() const { return causal ? 1 : columns.block; }
  constexpr int64_t lists() const { return (queries + group() - 1) / group(); }
  constexpr int64_t length() const { return columns.block + columns.in_first(keys); }
  constexpr int32_t key(int64_t list, int64_t place) const {
    const int64_t query = keys - queries + list * group();
    const int64_t own = query / columns.block;
    int64_t j = own * columns.block + place;
    if (place >= columns.block) {
      j = columns.token(place - columns.block);
      if (!twice && j / columns.block == own) return -1;
    }
    const int64_t last = causal ? query : keys - 1;
    return j > last ? -1 : static_cast<int32_t>(j);
  }
};

// i32 [1, 1, lists, length] on the device.
Tensor index_of(const FixedLists& lists, Device device);

}  // namespace linnet
