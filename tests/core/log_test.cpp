// Logging: what reaches stderr and the log file, also when the disk is full.
#include "core/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/file_failures.h"

namespace linnet {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

TEST(Log, LinesGoToStderrAndToTheFile) {
  const test::ScratchDirectory scratch;
  set_log_file(scratch / "log.txt");
  testing::internal::CaptureStderr();
  log_info("step ", 3, " of {}");
  log_warning("careful");
  log_error("broken");
  log(LogLevel::debug, "hidden");
  const std::string console = testing::internal::GetCapturedStderr();
  set_log_file("");
  log(LogLevel::debug, "after");
  EXPECT_EQ(console, "step 3 of {}\nwarning: careful\nerror: broken\n");
  EXPECT_THAT(read_file(scratch / "log.txt"),
              MatchesRegex("....-..-..T..:..:..Z info    step 3 of \\{\\}\n"
                           ".*Z warning careful\n.*Z error   broken\n"));
}

TEST(Log, LevelsAreDropped) {
  testing::internal::CaptureStderr();
  set_log_level(LogLevel::error);
  log_warning("quiet");
  set_log_level(LogLevel::debug);
  log(LogLevel::debug, "loud");
  set_log_level(LogLevel::info);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "loud\n");
}

TEST(Log, AFullDiskIsReportedOnce) {
  const test::ScratchDirectory scratch;
  set_log_file(scratch / "log.txt");
  testing::internal::CaptureStderr();
  {
    const test::FailingFileSystem failing(0, test::Failure::no_space, true);
    log_info("one");
    log_info("two");
  }
  const std::string console = testing::internal::GetCapturedStderr();
  set_log_file("");
  EXPECT_THAT(console, HasSubstr("one\nwarning: no more log lines"));
  EXPECT_THAT(console, HasSubstr("No space left on device\ntwo\n"));
}

TEST(Log, ProgressIsInvisibleWithoutATerminal) {
  testing::internal::CaptureStderr();
  show_progress("step 1");
  end_progress();
  EXPECT_FALSE(progress_is_visible());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Log, FilesThatCannotBeOpenedAreErrors) {
  EXPECT_THROW(set_log_file("/nonexistent/log.txt"), Error);
}

}  // namespace
}  // namespace linnet
