// Names of parameters in one line.
#include "recipes/engine/weight_differences.h"

#include <gtest/gtest.h>

#include "tests/peak_memory.h"

namespace linnet {
namespace {

TEST(NamesOfLayers, CountLayersAndKeepTheOrder) {
  EXPECT_EQ(names_of_layers({}), "");
  EXPECT_EQ(names_of_layers({"b.0.q", "a", "b.1.q", "b.12.q", "b.x1.q"}), "b.*.q (3), a, b.x1.q");
}

// A hostile file may hold as many as its header has room for.
TEST(NamesOfLayers, TakeTimeInProportionToTheirNumber) {
  std::vector<std::string> names;
  for (int i = 0; i < 200'000; ++i) names.push_back(concat("x", i));
  const double begin = test::cpu_seconds();
  const std::string text = names_of_layers(names);
  EXPECT_LE(test::cpu_seconds() - begin, 5);
  EXPECT_TRUE(text.starts_with("x0, x1, ")) << text;
  EXPECT_TRUE(text.ends_with(", x19 and 199980 more")) << text;
}

}  // namespace
}  // namespace linnet
