// Which queries see a key is which keys a query sees, from the other side.
#include "attention/primitives/block_attention/pattern.h"

#include <gtest/gtest.h>

namespace linnet {
namespace {

using namespace block_attention_detail;

TEST(BlockAttentionPattern, QueriesOfAKeyAreThoseThatSeeIt) {
  for (const BlockPattern pattern :
       {BlockPattern::full, BlockPattern::band, BlockPattern::blocks}) {
    for (const bool causal : {false, true}) {
      for (const int64_t past : {0, 5}) {
        for (const int64_t start : {0, 3, 8}) {
          BlockAttentionOptions options;
          options.pattern = pattern;
          options.causal = causal;
          options.left = 3;
          options.right = 2;
          options.block = 4;
          const int64_t queries = 11;
          const Segment segment{0, 2, queries, 2, queries, past, start, 0, 0};
          int64_t pairs = 0;
          for (int64_t u = 0; u < segment.all_keys(); ++u) {
            const KeyRange seeing = visible_queries(segment, options, u);
            EXPECT_LE(0, seeing.begin);
            EXPECT_LE(seeing.begin, seeing.end);
            EXPECT_LE(seeing.end, queries);
            for (int64_t r = 0; r < queries; ++r) {
              const KeyRange seen = visible_keys(segment, options, r);
              const bool sees = seen.begin <= u && u < seen.end;
              EXPECT_EQ(sees, seeing.begin <= r && r < seeing.end)
                  << static_cast<int>(pattern) << causal << " past " << past << " start " << start
                  << " key " << u << " query " << r;
              pairs += sees ? 1 : 0;
            }
          }
          EXPECT_GE(pairs, queries);
        }
      }
    }
  }
}

}  // namespace
}  // namespace linnet
