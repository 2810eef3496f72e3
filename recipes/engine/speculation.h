// Text by tree speculation (Cai et al. 2024, Medusa; You et al. 2024, section 4.2): Medusa heads
// guess the tokens behind the next one, one pass of the model reads a tree of guesses, and those
// that the model would have written are taken.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "recipes/engine/generator.h"
#include "recipes/engine/token_tree.h"

namespace linnet {

// Which guesses are taken. exact: at each node the model's next token is drawn as without guesses,
// by the same random number, and taken further where it is a node. This is rejection sampling
// (Leviathan et al. 2023) for guesses that are not random: a guess of probability p is taken with
// probability p, and what is drawn otherwise has the distribution of the rest. typical: the longest
// path whose guesses have p > min(0.09, 0.3 exp(-entropy)) by the distribution at the temperature,
// of equally long ones the likeliest. At temperature 0 both take the most likely tokens.
enum class Acceptance : uint8_t { exact, typical };

struct Speculation {
  TokenTree tree;
  Acceptance acceptance = Acceptance::exact;
  TreeStates states = TreeStates::shared;
};

// What passes over trees came to.
struct TreeCounts {
  std::vector<int64_t> accepted;  // accepted[n]: passes that took n guesses
  int64_t passes() const;
  // With the model's own token of each pass.
  double tokens_per_pass() const;
  void add(const TreeCounts& other);
};

// Throws UsageError unless the model has the heads and words that the tree needs.
void require_guesses(const Transformer& model, const TokenTree& tree);

// The part of a tree for which the model has positions behind a text.
TokenTree tree_with_room(const Transformer& model, const ModelState& state, const TokenTree& tree);

// Continues all texts, one after the other, each over trees of guesses. With exact acceptance in
// f32 on the CPU a text is that of generate_batch(). Throws as require_guesses() and
// generate_batch().
BatchCounts speculate(
    const Transformer& model, std::span<const Continuation> texts, const Speculation& speculation,
    const std::function<void(size_t text, Generated result, const TreeCounts& counts)>& on_done);

// One text.
struct Speculated {
  Generated text;
  TreeCounts counts;
};
Speculated speculate(const Transformer& model, const ReadText& text, const GenerateOptions& options,
                     const Speculation& speculation, const OnToken& on_token = {});

}  // namespace linnet
