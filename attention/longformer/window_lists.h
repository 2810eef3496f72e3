// Which keys longformer's queries see, as lists for listed_attention: places 0 ... globals - 1 are
// the global tokens, the others the window, by distance.
#pragma once

#include "core/tensor.h"

namespace linnet {

// Noncausal: query i (of those from token `globals` on) sees |i - j| <= reach in place
// globals + reach + j - i.
struct WindowLists {
  int64_t tokens = 0, globals = 0, reach = 0;

  constexpr int64_t queries() const { return tokens - globals; }
  constexpr int64_t length() const { return globals + 2 * reach + 1; }
  constexpr int32_t key(int64_t query, int64_t place) const {
    if (place < globals) return static_cast<int32_t>(place);
    const int64_t j = query + place - reach;
    return j < globals || j >= tokens ? -1 : static_cast<int32_t>(j);
  }
};

// Causal, with keys [globals so far ; window so far ; the call's tokens]: the token at distance d
// is in place globals + d. Windows hold no global token, and global tokens see no others.
struct CausalLists {
  int64_t tokens = 0, globals = 0, window = 0;
  int64_t past_globals = 0, past_window = 0;

  // Of the call's tokens, the first ones.
  constexpr int64_t new_globals() const {
    const int64_t missing = globals - past_globals;
    return missing < tokens ? missing : tokens;
  }
  constexpr int64_t queries() const { return tokens; }
  constexpr int64_t length() const { return globals + window; }
  constexpr int32_t key(int64_t query, int64_t place) const {
    const int64_t first = past_globals + past_window, added = new_globals();
    if (place < globals) {
      if (place < past_globals) return static_cast<int32_t>(place);
      const int64_t t = place - past_globals;
      return t < added && t <= query ? static_cast<int32_t>(first + t) : -1;
    }
    // Counted among the tokens that are not global.
    const int64_t j = past_window + query - added - (place - globals);
    if (query < added || j < 0) return -1;
    return static_cast<int32_t>(j < past_window ? past_globals + j
                                                : first + added + j - past_window);
  }
};

// i32 [1, 1, queries, length] on the device.
Tensor index_of(const WindowLists& lists, Device device);
Tensor index_of(const CausalLists& lists, Device device);

}  // namespace linnet
