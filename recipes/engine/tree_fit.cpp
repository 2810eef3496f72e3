#include "recipes/engine/tree_fit.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "core/step_memory.h"
#include "core/threads.h"

namespace linnet {

using Path = std::vector<int64_t>;

TokenTree likeliest_tree(const std::vector<std::vector<double>>& shares, int64_t guesses) {
  struct Candidate {
    Path path;
    double share;
  };
  std::vector<Candidate> candidates;  // below what the tree has
  const auto add_below = [&](const Path& path, double share) {
    if (path.size() == shares.size()) return;
    const std::vector<double>& head = shares[path.size()];
    for (int64_t rank = 0; rank < std::ssize(head); ++rank) {
      candidates.push_back({path, share * head[static_cast<size_t>(rank)]});
      candidates.back().path.push_back(rank);
    }
  };
  add_below({}, 1);
  std::vector<Path> paths;
  while (std::ssize(paths) < guesses && !candidates.empty()) {
    const auto best =
        std::max_element(candidates.begin(), candidates.end(),
                         [](const Candidate& a, const Candidate& b) { return a.share < b.share; });
    const Candidate taken = *best;
    candidates.erase(best);
    if (taken.share <= 0) break;
    paths.push_back(taken.path);
    add_below(taken.path, taken.share);
  }
  return tree_of_paths(std::move(paths));
}

double expected_tokens(const std::vector<std::vector<double>>& shares, const TokenTree& tree) {
  std::vector<double> taken{1};
  double tokens = 1;
  for (size_t node = 1; node < tree.ranks.size(); ++node) {
    const auto& head = shares.at(static_cast<size_t>(tree.depths[node] - 1));
    taken.push_back(taken[static_cast<size_t>(tree.parents[node])] *
                    head.at(static_cast<size_t>(tree.ranks[node])));
    tokens += taken.back();
  }
  return tokens;
}

std::vector<std::vector<double>> shares_of(const std::vector<GuessCounts>& guesses) {
  require_usage(!guesses.empty(), Cause{ErrorCode::conflict, "model.medusa"},
                "a tree is fitted to Medusa heads, which this checkpoint lacks: train some with "
                "'linnet train RECIPE --from CHECKPOINT --out DIR model.medusa.heads=4'");
  std::vector<std::vector<double>> shares;
  for (const GuessCounts& head : guesses) {
    require_usage(head.tokens > 0, Cause{ErrorCode::out_of_range, "--max-tokens"},
                  "too few tokens are scored to count a guess of Medusa head ", shares.size() + 1,
                  ": use a larger --max-tokens, or a --split with longer texts");
    std::vector<double>& own = shares.emplace_back();
    for (size_t guess = 0; guess < kGuesses; ++guess) own.push_back(head.share(guess));
  }
  return shares;
}

double pass_seconds(const Transformer& model, const ReadText& text, const TokenTree& whole,
                    TreeStates states, int64_t runs) {
  const TokenTree tree = tree_with_room(model, text.state, whole);
  const NoGrad off;
  const StepMemory memory;
  const SmallStep step(static_cast<int64_t>(text.state.bytes() / sizeof(float)) /
                       model.config().layers);
  const Tensor tokens =
      Tensor::from(std::vector<int32_t>(static_cast<size_t>(tree.size()), text.last),
                   {tree.size(), 1}, model.device());
  const std::vector<int64_t> path = {0, 1};
  double least = std::numeric_limits<double>::infinity();
  for (int64_t run = 0; run < runs; ++run) {
    const auto start = std::chrono::steady_clock::now();
    if (tree.size() == 1) {
      ModelState after = text.state;
      ModelState* row = &after;
      const Variable hidden = model.encode_rows(tokens, {&row, 1});
      model.token_head().logits(hidden.value().reshape({1, hidden.size(2)})).to_vector<float>();
    } else {
      for (int64_t head = 1; head <= tree.depth(); ++head) {
        model.medusa()->logits(head, text.hidden).to_vector<float>();
      }
      const TreeReading reading = model.encode_tree(tokens, tree.parents, text.state, states);
      model.token_head().logits(reading.hidden).to_vector<float>();
      const ModelState after = reading.after(path);
    }
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    least = std::min(least, taken.count());
  }
  return least;
}

FittedTree fit_tree(const std::vector<std::vector<double>>& shares, int64_t most,
                    const std::function<double(const TokenTree&)>& seconds) {
  FittedTree best;
  best.seconds = seconds(best.tree);
  const double plain = best.seconds;
  for (int64_t guesses = 1;; guesses += std::max<int64_t>(1, guesses / 2)) {
    const int64_t asked = std::min(guesses, most);
    FittedTree next;
    next.tree = likeliest_tree(shares, asked);
    next.tokens = expected_tokens(shares, next.tree);
    next.seconds = seconds(next.tree);
    next.speed_up = next.tokens * plain / next.seconds;
    if (next.speed_up > best.speed_up) best = next;
    if (guesses >= most || next.tree.size() <= asked) return best;
  }
}

}  // namespace linnet
