// Tests of word counts.
#include "data/words.h"

#include <gtest/gtest.h>

namespace linnet {
namespace {

TEST(Words, CountsMaximalRuns) {
  EXPECT_EQ(count_words(""), 0u);
  EXPECT_EQ(count_words(" \n\t"), 0u);
  EXPECT_EQ(count_words(" one  two\nthree\r\n"), 3u);
}

}  // namespace
}  // namespace linnet
