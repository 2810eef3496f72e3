// Trees that suit a checkpoint: from how often its heads are right and what passes cost.
#pragma once

#include <functional>
#include <vector>

#include "recipes/engine/later_targets.h"
#include "recipes/engine/speculation.h"

namespace linnet {

// The tree of so many guesses that are right most often, were each head right independently of the
// others: a path of guesses has the product of their shares. shares[k - 1][r]: of guess r of head
// k.
TokenTree likeliest_tree(const std::vector<std::vector<double>>& shares, int64_t guesses);
// By the same reckoning, the tokens of a pass: the model's own one and the guesses that are taken.
double expected_tokens(const std::vector<std::vector<double>>& shares, const TokenTree& tree);

// Of each head, of a score of a language model. Throws UsageError where it has none.
std::vector<std::vector<double>> shares_of(const std::vector<GuessCounts>& guesses);

// Seconds of a pass behind `text` that takes one guess: heads, model and logits; of a tree without
// guesses those of a step without a tree. The smallest of `runs`.
double pass_seconds(const Transformer& model, const ReadText& text, const TokenTree& tree,
                    TreeStates states, int64_t runs);

struct FittedTree {
  TokenTree tree;
  double tokens = 1;    // expected of a pass
  double seconds = 0;   // of a pass
  double speed_up = 1;  // expected, over the tree without guesses
};

// Of the likeliest trees of 0, 1, 2, 3, 4, 6, 9, 13 ... `most` guesses the one with the most
// expected tokens for each second. seconds(tree): what a pass costs.
FittedTree fit_tree(const std::vector<std::vector<double>>& shares, int64_t most,
                    const std::function<double(const TokenTree&)>& seconds);

}  // namespace linnet
