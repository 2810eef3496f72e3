// What Medusa heads predict, and how well they do.
#pragma once

#include <array>
#include <vector>

#include "core/json.h"
#include "data/batch.h"
#include "layers/model.h"

namespace linnet {

// Fills batch.later_targets for so many heads: head k of a token predicts the target of the token k
// places to the right, if both are scored and of one document.
void add_later_targets(int64_t heads, Batch& batch);

// Guesses of a head that are counted one by one; a tree has no others.
inline constexpr size_t kGuesses = 10;
// Tokens whose guesses are counted in a score.
inline constexpr int64_t kGuessedTokens = 1 << 15;

// How often the guesses of a head were right.
struct GuessCounts {
  int64_t tokens = 0;
  std::array<int64_t, kGuesses> right{};  // by the best guess, by the second best ...
  double share(size_t guess) const;
};

// Adds those of a batch: hidden [B,T,E] of `model`, counts of each of its heads.
void count_guesses(const MedusaHeads& heads, const Tensor& hidden, const Batch& batch,
                   std::vector<GuessCounts>& counts);

// [[share of head 1's best guess, of its second best, ...], ...] in lines of metrics.
JsonValue guess_shares(const std::vector<GuessCounts>& counts);

}  // namespace linnet
