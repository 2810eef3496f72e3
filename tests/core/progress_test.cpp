// Progress of long work, with a clock and a screen of the test's own.
#include "core/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace linnet {
namespace {

using testing::ElementsAre;

class Progress : public ::testing::Test {
 protected:
  ProgressOutput output(bool terminal) {
    return {terminal, [this] { return now_; },
            [this](const std::string& line) { drawn_.push_back(line); },
            [this](const std::string& line) { printed_.push_back(line); }};
  }
  double now_ = 1000;
  std::vector<std::string> drawn_, printed_;
};

TEST_F(Progress, ATerminalsLineIsRedrawnAndErased) {
  {
    WorkProgress progress(output(true));
    for (int i = 0; i < 128; ++i) {
      now_ = 1000 + i / 64.0;
      progress.show("work", i, 256);
    }
    progress.erase();
    progress.erase();
    now_ += 0.2;
    progress.show("more", 150, 200);
  }
  EXPECT_THAT(
      drawn_,
      ElementsAre("work, 12 %, ETA 0:04", "work, 17 %, ETA 0:03", "work, 22 %, ETA 0:03",
                  "work, 27 %, ETA 0:03", "work, 32 %, ETA 0:03", "work, 37 %, ETA 0:02",
                  "work, 42 %, ETA 0:02", "work, 48 %, ETA 0:02", "", "more, 75 %, ETA 0:01", ""));
  EXPECT_THAT(printed_, ElementsAre());
}

TEST_F(Progress, ElsewhereAPlainLineComesEvery30Seconds) {
  {
    WorkProgress progress(output(false));
    for (int second = 0; second < 100; ++second) {
      now_ = 1000 + second;
      progress.show("work", second, 7300);
    }
  }
  EXPECT_THAT(printed_, ElementsAre("work, 0 %, ETA 2:01:10", "work, 0 %, ETA 2:00:40",
                                    "work, 1 %, ETA 2:00:10"));
  EXPECT_THAT(drawn_, ElementsAre());
}

TEST_F(Progress, ShortWorkShowsNothing) {
  for (const bool terminal : {false, true}) {
    WorkProgress progress(output(terminal));
    now_ += 0.4;
    progress.show("work", 1, 2);
    EXPECT_FALSE(progress.due());
  }
  EXPECT_THAT(drawn_, ElementsAre());
  EXPECT_THAT(printed_, ElementsAre());
}

TEST_F(Progress, WhatIsNotKnownIsLeftOut) {
  WorkProgress progress(output(true));
  now_ += 1;
  progress.show("work", 3, 0);
  now_ += 1;
  shown_by(progress)("part", 0, 4);
  now_ += 1;
  shown_by(progress)("part", 2, 4);
  EXPECT_THAT(drawn_, ElementsAre("work", "part (1 of 4), 0 %", "part (3 of 4), 50 %, ETA 0:03"));
}

TEST_F(Progress, DurationsAreReadable) {
  EXPECT_EQ(format_duration(0), "0:00");
  EXPECT_EQ(format_duration(200.4), "3:20");
  EXPECT_EQ(format_duration(7403), "2:03:23");
}

}  // namespace
}  // namespace linnet
