// Edit distance and nearest words.
#include "core/suggest.h"

#include <gtest/gtest.h>

namespace linnet {
namespace {

TEST(Suggest, EditDistanceCountsASwapAsOne) {
  EXPECT_EQ(edit_distance("rank", "rank"), 0);
  EXPECT_EQ(edit_distance("rnak", "rank"), 1);
  EXPECT_EQ(edit_distance("ran", "rank"), 1);
  EXPECT_EQ(edit_distance("rrank", "rank"), 1);
  EXPECT_EQ(edit_distance("rant", "rank"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", ""), 3);
}

TEST(Suggest, NearestFirstAndNothingFarAway) {
  const std::vector<std::string> keys = {"width", "heads", "layers", "attention"};
  EXPECT_EQ(nearest_words("widht", keys), std::vector<std::string>{"width"});
  EXPECT_EQ(nearest_words("head", keys).front(), "heads");
  EXPECT_TRUE(nearest_words("zzz", keys).empty());
  EXPECT_TRUE(nearest_words(std::string(100000, 'a'), keys).empty());
  // Equal distance: the longer common beginning wins.
  EXPECT_EQ(nearest_words("max_steqs", {"mix_steps", "max_steps"}).front(), "max_steps");
}

TEST(Suggest, Sentence) {
  EXPECT_EQ(suggestion("rnak", {"rank", "basis"}), "did you mean 'rank'?");
  EXPECT_EQ(suggestion("zzz", {"rank", "basis"}), "expected one of rank, basis");
}

}  // namespace
}  // namespace linnet
