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

TEST(Words, PiecesCountAsTheWhole) {
  const std::string text = " one  two\nthree\r\n\nfour";
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      TextCounts counts;
      for (const std::string& piece :
           {text.substr(0, first), text.substr(first, second - first), text.substr(second)}) {
        counts.add(piece);
      }
      EXPECT_EQ(counts.bytes, static_cast<int64_t>(text.size()));
      EXPECT_EQ(counts.words, 4);
      EXPECT_EQ(counts.line_ends, 3);
      EXPECT_FALSE(counts.ends_line());
    }
  }
}

}  // namespace
}  // namespace linnet
