// Tokens for tests, and back.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "data/token_array.h"

namespace linnet::test {

inline TokenArray array_of(const std::vector<int32_t>& ids,
                           int32_t vocabulary_size = std::numeric_limits<int32_t>::max()) {
  std::string stored;
  append_tokens(ids, vocabulary_size, stored);
  return TokenArray(std::move(stored), vocabulary_size);
}

inline std::vector<int32_t> ids_of(const TokenArray& tokens) {
  std::vector<int32_t> ids(static_cast<size_t>(tokens.size()));
  tokens.read(0, ids);
  return ids;
}

}  // namespace linnet::test
