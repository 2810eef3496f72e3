// Which keys longformer's queries see, as lists for listed_attention: `group` consecutive queries
// share one. Places 0 ... globals - 1 are the global tokens, the others the union of the windows; a
// bias of 0 or -infinity says which of them a query sees.
#pragma once

#include <algorithm>
#include <limits>

#include "core/tensor.h"

namespace linnet {

// Number of queries that share a list: a list is about a quarter longer than the keys that one
// query sees.
constexpr int64_t queries_of_list(int64_t window) {
  return std::clamp<int64_t>(window / 4, 8, 64);
}

// Noncausal: query i (of those from token `globals` on) sees |i - j| <= reach.
struct WindowLists {
  int64_t tokens = 0, globals = 0, reach = 0, group = 1;

  constexpr int64_t queries() const { return tokens - globals; }
  constexpr int64_t length() const { return globals + 2 * reach + group; }
  constexpr int32_t key(int64_t list, int64_t place) const {
    if (place < globals) return static_cast<int32_t>(place);
    const int64_t j = list * group + place - reach;
    return j < globals || j >= tokens ? -1 : static_cast<int32_t>(j);
  }
  constexpr bool sees(int64_t query, int64_t place) const {
    const int64_t first = globals + query % group;
    return place < globals || (place >= first && place <= first + 2 * reach);
  }
};

// Causal, with keys [globals so far ; window so far ; the call's tokens]. Windows hold no global
// token, and global tokens see no others. The token at distance d from the last query of a list is
// in place globals + d, so that the lists do not depend on how a sequence is split into calls.
struct CausalLists {
  int64_t tokens = 0, globals = 0, window = 0;
  int64_t past_globals = 0, past_window = 0;
  int64_t group = 1;

  // The first of the call's tokens.
  constexpr int64_t new_globals() const {
    const int64_t missing = globals - past_globals;
    return missing < tokens ? missing : tokens;
  }
  constexpr int64_t queries() const { return tokens; }
  constexpr int64_t length() const { return globals + window - 1 + group; }
  // -1 also for tokens that no query of the list sees.
  constexpr int32_t key(int64_t list, int64_t place) const {
    const int64_t first = past_globals + past_window, added = new_globals();
    const int64_t end = (list + 1) * group, last = std::min(end, tokens) - 1;
    if (place < globals) {
      if (place < past_globals) return static_cast<int32_t>(place);
      const int64_t t = place - past_globals;
      return t < added && t <= last ? static_cast<int32_t>(first + t) : -1;
    }
    // Counted among the tokens that are not global.
    const int64_t j = past_window + end - 1 - added - (place - globals);
    if (last < added || j < 0 || j > past_window + last - added) return -1;
    return static_cast<int32_t>(j < past_window ? past_globals + j
                                                : first + added + j - past_window);
  }
  constexpr bool sees(int64_t query, int64_t place) const {
    if (place < globals) return place - past_globals <= query;
    const int64_t own = globals + group - 1 - query % group;
    return query >= new_globals() && place >= own && place < own + window;
  }
};

// For place i of all queries' places: the key, written by the first query of each list, and the
// bias unless null.
template <typename Lists>
constexpr void fill_place(const Lists& lists, int64_t i, int32_t* index, float* bias) {
  const int64_t length = lists.length(), query = i / length, place = i % length;
  if (query % lists.group == 0) {
    const int64_t list = query / lists.group;
    index[list * length + place] = lists.key(list, place);
  }
  if (bias == nullptr) return;
  bias[i] = lists.sees(query, place) ? 0.0f : -std::numeric_limits<float>::infinity();
}

// On one device.
struct ListsWithBias {
  Tensor index;  // i32 [1, 1, ceil(queries / group), length]
  Tensor bias;   // f32 [1, 1, queries, length]; undefined where each query has its own list
};
ListsWithBias made(const WindowLists& lists, Device device);
ListsWithBias made(const CausalLists& lists, Device device);

}  // namespace linnet
