// Child processes: whole lines, exit codes, signals.
#include "core/child_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"

namespace linnet {
namespace {

constexpr const char* kRole = "LINNET_TEST_CHILD";

// This program is its own child, which by its environment does one of these before any test begins.
const bool kIsParent = [] {
  const char* role = std::getenv(kRole);
  if (role == nullptr) return true;
  if (std::string(role) == "waits") {
    while (true) ::pause();
  }
  for (const auto& [stream, text] : {std::pair{STDOUT_FILENO, "first\nsec"},
                                     {STDERR_FILENO, "ond\n"},
                                     {STDOUT_FILENO, "without an end"}}) {
    if (::write(stream, text, std::strlen(text)) < 0) ::_exit(1);
  }
  ::_exit(7);
}();

class ChildProcessTest : public testing::Test {
 protected:
  static void take_role(const char* role) { ::setenv(kRole, role, 1); }
  void TearDown() override { ::unsetenv(kRole); }
};

std::vector<std::string> all_lines(ChildProcess& child) {
  std::vector<std::string> lines;
  while (child.running()) {
    for (std::string& line : child.read_lines()) lines.push_back(std::move(line));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return lines;
}

TEST_F(ChildProcessTest, GivesItsLinesAndExitCode) {
  take_role("speaks");
  ChildProcess child({});
  EXPECT_EQ(all_lines(child), (std::vector<std::string>{"first", "second", "without an end"}));
  EXPECT_EQ(child.exit_code(), 7);
  EXPECT_TRUE(child.read_lines().empty());
}

TEST_F(ChildProcessTest, KeepsErrorsApartAndTakesVariables) {
  take_role("waits");  // replaced
  ChildProcess child({}, {.variables = {concat(kRole, "=speaks")}, .separate_errors = true});
  std::vector<std::string> errors;
  std::vector<std::string> lines;
  while (child.running()) {
    for (std::string& line : child.read_lines()) lines.push_back(std::move(line));
    for (std::string& line : child.read_error_lines()) errors.push_back(std::move(line));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(lines, (std::vector<std::string>{"first", "secwithout an end"}));
  EXPECT_EQ(errors, std::vector<std::string>{"ond"});
  EXPECT_EQ(child.exit_code(), 7);
}

TEST_F(ChildProcessTest, SaysWhichSignalEndedIt) {
  take_role("waits");
  ChildProcess child({});
  child.signal(SIGKILL);
  all_lines(child);
  EXPECT_EQ(child.exit_code(), 128 + SIGKILL);
}

TEST_F(ChildProcessTest, EndsWithItsObject) {
  take_role("waits");
  const auto start = std::chrono::steady_clock::now();
  { const ChildProcess child({}); }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

}  // namespace
}  // namespace linnet
