// How the tokens of a row are split into landmarks: runs of consecutive tokens, of nearly equal
// length.
#pragma once

#include <cstdint>

namespace linnet {

// The landmark of a token, and how many tokens it has.
struct Landmark {
  int64_t number, tokens;
};

// The landmark of token number `rank` of `tokens`, which are split into min(tokens, C) landmarks in
// order; the last tokens mod C landmarks are one token longer.
constexpr Landmark landmark_of(int64_t rank, int64_t tokens, int64_t C) {
  const int64_t count = tokens < C ? tokens : C, each = tokens / count;
  const int64_t shorter = count - tokens % count, first_long = shorter * each;
  if (rank < first_long) return {rank / each, each};
  return {shorter + (rank - first_long) / (each + 1), each + 1};
}

}  // namespace linnet
