// Lists of keys, for listed attention, that follow from positions alone.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace linnet {

// Which keys the queries of a list see. p is the position of the list's first query, counted in
// tokens from the beginning of the row.
struct KeyLists {
  enum class Kind : uint8_t {
    all,        // place l: key l
    block,      // the block of `size` positions that holds p, and `before` ones before it: place l
                // is the l-th; with `causal`, those up to p
    back,       // place l: the key l positions before p
    completed,  // keys are summaries, `rank` of each chunk of `size` positions: the summaries of
                // chunks before that of p, the last first
  };
  Kind kind = Kind::all;
  int64_t size = 1, before = 0, rank = 1;
  bool causal = false;
  int64_t first = 0;   // position of query 0
  int64_t group = 1;   // queries that share a list
  int64_t offset = 0;  // number, in positions or summaries, of key 0
  int64_t lists = 0, length = 0, keys = 0;
  // Where a step of one token must be the same work at every position: query 0 is `first` positions
  // behind *position, which lies on the device of the lists. The last key then is the query's own
  // token, or the last summary that the query sees, and `offset` is not read.
  const int32_t* position = nullptr;

  constexpr int64_t begin() const { return position == nullptr ? first : first + *position; }
  // The key of a place of a list; -1: none.
  constexpr int32_t key(int64_t list, int64_t place) const {
    const int64_t p = begin() + list * group;
    int64_t number = place;
    if (kind == Kind::block) number = p - p % size - before + place;
    if (kind == Kind::back) number = p - place;
    if (kind == Kind::completed) number = p / size * rank - 1 - place;
    if (number < 0 || (causal && number > p)) return -1;
    if (position == nullptr) {
      number -= offset;
    } else {
      number -= (kind == Kind::completed ? p / size * rank : p + 1) - keys;
    }
    return number >= 0 && number < keys ? static_cast<int32_t>(number) : -1;
  }
};

// i32 [1,1,lists,length], on `device`.
Tensor key_lists(const KeyLists& rule, Device device);
// Pairs of query and key in the lists of that many queries.
double listed_pairs(const KeyLists& rule, int64_t queries);

}  // namespace linnet
