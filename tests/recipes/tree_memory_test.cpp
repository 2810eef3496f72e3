// Memory of a pass over a tree from shapes, and the ratio that Linearized LLM prints.
#include "recipes/engine/tree_memory.h"

#include <gtest/gtest.h>

namespace linnet {
namespace {

TEST(TreeMemory, CountsStatesAndTokens) {
  // A root, two guesses, one behind the first: 4 nodes, 2 candidates, padded to 3 tokens.
  const TokenTree tree = tree_of_paths({{0}, {1}, {0, 0}});
  const TreeMemory memory = tree_memory(tree, 100, 10);
  EXPECT_EQ(memory.shared, 100 + 4 * 10);
  EXPECT_EQ(memory.copied, 2 * (100 + 3 * 10));
  EXPECT_DOUBLE_EQ(memory.ratio(), 260.0 / 140);
}

// You et al. (2024): q, k and v of LLaMA-2-7B (32 layers of width 4,096) take 0.4 GB for 42
// candidates that are copied and 0.1 GB for one tree of 64 tokens. In f32 shapes give 0.33 and
// 0.10; the printed figures, with one digit, allow ratios of 0.35 / 0.15 to 0.45 / 0.05.
TEST(TreeMemory, ThePapersRatioFollowsFromShapes) {
  const TokenTree tree = named_tree(std::string(kMedusaTree));
  ASSERT_EQ(tree.size(), 64);
  ASSERT_EQ(tree.leaves(), 42);
  const TreeMemory memory = tree_memory(tree, 0, 3.0 * 4096 * 32 * 4);
  EXPECT_NEAR(memory.shared, 0.1007e9, 1e5);
  EXPECT_NEAR(memory.copied, 0.3303e9, 1e5);
  EXPECT_GT(memory.ratio(), 0.35 / 0.15);
  EXPECT_LT(memory.ratio(), 0.45 / 0.05);
}

}  // namespace
}  // namespace linnet
