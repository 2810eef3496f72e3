// Spans of packed rows, strided views.
#include "core/sequence_view.h"

#include <gtest/gtest.h>

namespace linnet {
namespace {

TEST(Views, SpansWithoutSegmentsAreWholeRows) {
  const int64_t starts[] = {5, 9};
  const std::vector<Span> spans = make_spans(nullptr, 2, 4, true, starts);
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[1].row, 1);
  EXPECT_EQ(spans[1].begin, 0);
  EXPECT_EQ(spans[1].end, 4);
  EXPECT_TRUE(spans[1].carries_in);
  EXPECT_TRUE(spans[1].carries_out);
  EXPECT_EQ(spans[1].start_position, 9);
}

TEST(Views, SegmentsCutRowsAndOnlyTheFirstSpanContinues) {
  const int32_t segments[] = {3, 3, 4, 5, 5, 5, 7, 7, 7, 7, 7, 7};
  const int64_t starts[] = {10, 20};
  const std::vector<Span> spans = make_spans(segments, 2, 6, true, starts);
  ASSERT_EQ(spans.size(), 4u);
  const int64_t begins[] = {0, 2, 3, 0}, ends[] = {2, 3, 6, 6}, positions[] = {10, 0, 0, 20};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(spans[i].row, i / 3) << i;
    EXPECT_EQ(spans[i].begin, begins[i]) << i;
    EXPECT_EQ(spans[i].end, ends[i]) << i;
    EXPECT_EQ(spans[i].carries_in, i == 0 || i == 3) << i;
    EXPECT_EQ(spans[i].carries_out, i >= 2) << i;
    EXPECT_EQ(spans[i].start_position, positions[i]) << i;
  }
  EXPECT_FALSE(make_spans(segments, 2, 6, false)[0].carries_in);
}

TEST(Views, EmptyRowsStillPassTheirStateOn) {
  const std::vector<Span> spans = make_spans(nullptr, 1, 0, true);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_TRUE(spans[0].carries_in && spans[0].carries_out && spans[0].begin == spans[0].end);
}

TEST(Views, StridesReachIntoFusedProjections) {
  float fused[2 * 3 * 12];
  for (int i = 0; i < 2 * 3 * 12; ++i) fused[i] = static_cast<float>(i);
  const SequenceView<float> keys(fused + 4, 2, 3, 2, 2, 36, 12, 2);
  const SequenceView<const float> read_only = keys;
  EXPECT_EQ(read_only.at(1, 2, 1)[1], 36 + 24 + 4 + 2 + 1);
}

}  // namespace
}  // namespace linnet
