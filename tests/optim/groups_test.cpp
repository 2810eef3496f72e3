// Glob patterns over parameter names, default exemptions from weight decay, merging of neighbours.
#include "optim/groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace linnet {
namespace {

std::vector<ParameterSpan> small_layout() {
  return {{"embedding.weight", 0, 10},          {"layers.0.norm1.gain", 10, 12},
          {"layers.0.norm1.bias", 12, 14},      {"layers.0.ffn.up.weight", 16, 20},
          {"layers.0.ffn.down.weight", 20, 24}, {"final_norm.gain", 24, 26}};
}

TEST(Glob, MatchesTheWholeName) {
  EXPECT_TRUE(glob_matches("*", ""));
  EXPECT_TRUE(glob_matches("*.norm.*", "layers.0.norm.weight"));
  EXPECT_TRUE(glob_matches("layers.?.ffn*", "layers.3.ffn.up.weight"));
  EXPECT_TRUE(glob_matches("a*b*c", "a.b.b.c"));
  EXPECT_FALSE(glob_matches("norm", "norm1"));
  EXPECT_FALSE(glob_matches("*norm", "norm1"));
  EXPECT_FALSE(glob_matches("layers.?.ffn", "layers.12.ffn"));
  EXPECT_FALSE(glob_matches("", "a"));
}

TEST(Groups, BiasesAndNormsAreFreeOfDecayEmbeddingsAreNot) {
  const auto groups = make_groups(small_layout(), 0.1, {});
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[0].end, 10);
  EXPECT_EQ(groups[0].weight_decay, 0.1);
  EXPECT_EQ(groups[1].begin, 10);  // gain and bias of the norm, merged
  EXPECT_EQ(groups[1].end, 14);
  EXPECT_EQ(groups[1].weight_decay, 0);
  EXPECT_EQ(groups[2].begin, 16);  // the gap [14, 16) belongs to nobody
  EXPECT_EQ(groups[2].end, 24);
  EXPECT_EQ(groups[2].weight_decay, 0.1);
  EXPECT_EQ(groups[3].weight_decay, 0);
}

TEST(Groups, LaterRulesWinAndLeaveTheRestAlone) {
  const auto groups = make_groups(
      small_layout(), 0.1,
      {{"layers.*", 0.5, {}}, {"*.down.weight", {}, 0.25}, {"layers.0.norm1.*", 0, {}}});
  ASSERT_EQ(groups.size(), 5u);
  EXPECT_EQ(groups[1].weight_decay, 0);
  EXPECT_EQ(groups[2].weight_decay, 0.5);
  EXPECT_EQ(groups[2].lr_scale, 1);
  EXPECT_EQ(groups[3].weight_decay, 0.5);
  EXPECT_EQ(groups[3].lr_scale, 0.25);
}

TEST(Groups, AMistypedPatternNamesTheNearestParameters) {
  EXPECT_THAT(
      [] {
        make_groups(small_layout(), 0.1, {{"*.fnn.up.weight", 0, {}}});
      },
      ::testing::ThrowsMessage<UsageError>(
          ::testing::AllOf(::testing::HasSubstr("'*.fnn.up.weight' matches no parameter"),
                           ::testing::HasSubstr("are 'layers.0.ffn.up.weight'"))));
}

}  // namespace
}  // namespace linnet
