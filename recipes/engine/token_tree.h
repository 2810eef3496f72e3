// Trees of guesses for `generate --speculate`: which guesses of which Medusa heads are tried
// together.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/row_products.h"

namespace linnet {

// As many rows as products take at once in a decode step.
inline constexpr int64_t kMaxNodes = kMaxProductRows;
// The tree of Medusa's code (Cai et al. 2024) for models of 7 billion parameters: 63 guesses.
inline constexpr std::string_view kMedusaTree = "mc_sim_7b_63";

// Node 0 is the model's own next token. Another node, at depth k, is the token of one guess of
// Medusa head k behind those above it. By depth, then by ranks.
struct TokenTree {
  std::vector<int64_t> parents{-1};  // earlier nodes
  std::vector<int64_t> depths{0};
  std::vector<int64_t> ranks{0};  // 0: the best guess of head `depth`; unused of node 0
  int64_t size() const { return std::ssize(parents); }
  int64_t depth() const { return depths.back(); }
  int64_t leaves() const;
  // Its nodes down to that depth.
  TokenTree down_to(int64_t depth) const;
  // The ranks from the root to a node, without the root's.
  std::vector<int64_t> path(int64_t node) const;
  bool operator==(const TokenTree&) const = default;
};

// Of paths as Medusa's code has them: [0, 2] is the third guess of head 2 behind the best one of
// head 1. Throws UsageError where a path is empty, negative, given twice or without its beginning,
// and beyond kMaxNodes.
TokenTree tree_of_paths(std::vector<std::vector<int64_t>> paths);
// The best guess of each of so many heads.
TokenTree chain_tree(int64_t depth);
// Throws UsageError for a name that is none.
TokenTree named_tree(const std::string& name);

// A tree by name, or from a YAML file with one of `tree: NAME`, `chain: N` and `paths: [[0], [1],
// [0, 0]]`, which may be empty: no guesses. Throws UsageError for a file that holds no tree.
TokenTree load_tree(const std::string& name_or_file);
// The text of a file that load_tree() reads, each comment on a line of its own.
std::string tree_yaml(const TokenTree& tree, const std::vector<std::string>& comments);

}  // namespace linnet
