// Trees of guesses: the named one, files, refusals, fitting.
#include "recipes/engine/token_tree.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "recipes/engine/tree_fit.h"
#include "tests/data/temporary_folder.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

using Paths = std::vector<std::vector<int64_t>>;

TEST(TokenTree, MedusasHas63GuessesOfFourHeads) {
  const TokenTree tree = named_tree("mc_sim_7b_63");
  EXPECT_EQ(tree.size(), 64);
  EXPECT_EQ(tree.leaves(), 42);
  std::vector<int64_t> by_depth(5);
  for (const int64_t depth : tree.depths) ++by_depth[static_cast<size_t>(depth)];
  EXPECT_EQ(by_depth, (std::vector<int64_t>{1, 10, 28, 23, 2}));
  EXPECT_TRUE(std::is_sorted(tree.depths.begin(), tree.depths.end()));
  EXPECT_EQ(tree.path(63), (std::vector<int64_t>{0, 0, 0, 1}));
  EXPECT_EQ(tree.path(0), std::vector<int64_t>{});
  // As Medusa's code sorts them: the first of depth 2 and of depth 3, and [9, 0].
  EXPECT_EQ(tree.path(11), (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(tree.path(38), (std::vector<int64_t>{9, 0}));
  EXPECT_EQ(tree.path(39), (std::vector<int64_t>{0, 0, 0}));
  for (int64_t node = 1; node < tree.size(); ++node) {
    EXPECT_EQ(tree.depths[static_cast<size_t>(node)],
              tree.depths[static_cast<size_t>(tree.parents[static_cast<size_t>(node)])] + 1);
  }
}

TEST(TokenTree, IsOfPathsInAnyOrder) {
  const TokenTree tree = tree_of_paths({{1, 2}, {0}, {1}, {0, 0}});
  EXPECT_EQ(tree.parents, (std::vector<int64_t>{-1, 0, 0, 1, 2}));
  EXPECT_EQ(tree.depths, (std::vector<int64_t>{0, 1, 1, 2, 2}));
  EXPECT_EQ(tree.ranks, (std::vector<int64_t>{0, 0, 1, 0, 2}));
  EXPECT_EQ(tree.down_to(1), tree_of_paths({{0}, {1}}));
  EXPECT_EQ(tree.down_to(0), TokenTree());
  EXPECT_EQ(tree.down_to(9), tree);
  EXPECT_EQ(chain_tree(3), tree_of_paths({{0}, {0, 0}, {0, 0, 0}}));
  EXPECT_EQ(chain_tree(0), TokenTree());
}

TEST(TokenTree, ComesFromAFileAndGoesBack) {
  const test::TemporaryFolder folder;
  folder.write("name.yaml", "tree: mc_sim_7b_63\n");
  folder.write("chain.yaml", "chain: 4\n");
  folder.write("own.yaml", "paths: [[0], [1], [0, 0]]\n");
  EXPECT_EQ(load_tree(folder / "name.yaml"), named_tree("mc_sim_7b_63"));
  EXPECT_EQ(load_tree("mc_sim_7b_63"), named_tree("mc_sim_7b_63"));
  EXPECT_EQ(load_tree(folder / "chain.yaml"), chain_tree(4));
  EXPECT_EQ(load_tree(folder / "own.yaml"), tree_of_paths({{0}, {1}, {0, 0}}));
  folder.write("none.yaml", tree_yaml(TokenTree(), {"nothing pays"}));
  EXPECT_EQ(load_tree(folder / "none.yaml"), TokenTree());
  folder.write("again.yaml", tree_yaml(named_tree("mc_sim_7b_63"), {"a comment", "and another"}));
  EXPECT_EQ(load_tree(folder / "again.yaml"), named_tree("mc_sim_7b_63"));
}

TEST(TokenTree, ThatIsNoneIsRefusedWhereItStands) {
  const test::TemporaryFolder folder;
  const auto refusal = [&](const std::string& text) {
    folder.write("tree.yaml", text);
    return test::causes_of<UsageError>([&] { load_tree(folder / "tree.yaml"); }, folder.path());
  };
  EXPECT_EQ(refusal("paths: [[0], [1, 0]]\n"), "malformed paths at tree.yaml:1:8");
  EXPECT_EQ(refusal("\npaths: [[0], [0]]\n"), "repeated paths at tree.yaml:2:8");
  EXPECT_EQ(refusal("paths: [[0], []]\n"), "malformed paths at tree.yaml:1:8");
  EXPECT_EQ(refusal("paths: [[0], [-1]]\n"), "out_of_range paths at tree.yaml:1:8");
  EXPECT_EQ(refusal("tree: oak\n"), "unknown_name tree at tree.yaml:1:7");
  EXPECT_EQ(refusal("chain: 17\n"), "out_of_range chain at tree.yaml:1:8");
  EXPECT_EQ(refusal("chain: 2\npaths: [[0]]\n"), "conflict paths at tree.yaml:2:8");
  EXPECT_EQ(refusal("chain: 2\ntree: mc_sim_7b_63\n"), "conflict chain at tree.yaml:1:8");
  EXPECT_EQ(refusal("chain: 0\n"), "out_of_range chain at tree.yaml:1:8");
  EXPECT_EQ(refusal("{}\n"), "malformed at tree.yaml");
  EXPECT_EQ(test::causes_of<UsageError>([] { load_tree("chain: 2"); }), "not_found at chain: 2");
  std::string many = "paths: [";
  for (int i = 0; i < 64; ++i) many += concat("[", i, "],");
  EXPECT_EQ(refusal(many + "]\n"), "out_of_range paths at tree.yaml:1:8");
}

TEST(TreeFit, TakesTheLikeliestGuessesThatPayForThemselves) {
  const std::vector<std::vector<double>> shares = {{0.6, 0.2, 0.1}, {0.5, 0.3, 0}};
  // 0.6, [0,0] 0.3, [1] 0.2, [0,1] 0.18, then [1,0] and [2] 0.1.
  EXPECT_EQ(likeliest_tree(shares, 4), tree_of_paths({{0}, {0, 0}, {1}, {0, 1}}));
  EXPECT_DOUBLE_EQ(expected_tokens(shares, likeliest_tree(shares, 4)), 1 + 0.6 + 0.3 + 0.2 + 0.18);
  EXPECT_EQ(likeliest_tree(shares, 63).size(), 1 + 3 + 6) << "guesses that are never right";
  const auto linear = [](double per_node) {
    return [per_node](const TokenTree& tree) {
      return 1 + per_node * static_cast<double>(tree.size() - 1);
    };
  };
  const FittedTree free = fit_tree(shares, 4, linear(0));
  EXPECT_EQ(free.tree, likeliest_tree(shares, 4));
  EXPECT_DOUBLE_EQ(free.speed_up, 2.28);
  const FittedTree dear = fit_tree(shares, 63, linear(1));
  EXPECT_EQ(dear.tree, TokenTree());
  EXPECT_DOUBLE_EQ(dear.speed_up, 1);
  // 1.6 / 1.3 = 1.23, 1.9 / 1.6 = 1.19.
  EXPECT_EQ(fit_tree(shares, 63, linear(0.3)).tree, tree_of_paths({{0}}));
}

}  // namespace
}  // namespace linnet
