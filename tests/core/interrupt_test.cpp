// A request to stop: what it ends, what it waits for, and what is done before.
#include "core/interrupt.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <new>

#include "core/log.h"
#include "tests/file_failures.h"

namespace linnet {
namespace {

// How a process of its own ended that watches for signals and does `work`: its exit code.
int exit_code_of(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    set_log_level(LogLevel::error);
    block_stop_signals();
    watch_stop_signals();
    ::alarm(20);
    work();
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  return WEXITSTATUS(status);
}

void send(int signal) {
  ::kill(::getpid(), signal);
}

[[noreturn]] void wait_for_ever() {
  while (true) ::pause();
}

// Until the first signal was received, however busy the machine is.
void wait_for_request() {
  while (stop_signal() == 0) ::usleep(1000);
}

TEST(Interrupt, TheFirstSignalEndsWhatNobodyHolds) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    EXPECT_EQ(exit_code_of([&] {
                send(signal);
                wait_for_ever();
              }),
              3);
  }
}

TEST(Interrupt, ASignalBeforeTheWatchIsKept) {
  EXPECT_EQ(exit_code_of([] { ::_exit(7); }), 7);
  const pid_t child = ::fork();
  if (child == 0) {
    set_log_level(LogLevel::error);
    block_stop_signals();
    send(SIGTERM);
    watch_stop_signals();
    wait_for_ever();
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kStopped);
}

TEST(Interrupt, HeldWorkGoesOnToItsEnd) {
  const test::ScratchDirectory scratch;
  EXPECT_EQ(exit_code_of([&] {
              {
                const HoldStop hold;
                send(SIGTERM);
                wait_for_request();
                ::usleep(50'000);
                write_file(scratch / "saved", "all");
              }
              end_if_stopping();
            }),
            3);
  EXPECT_EQ(read_file(scratch / "saved"), "all");
}

TEST(Interrupt, ASecondSignalEndsHeldWork) {
  EXPECT_EQ(exit_code_of([] {
              const HoldStop hold;
              send(SIGTERM);
              wait_for_request();
              ::usleep(400'000);
              send(SIGINT);
              wait_for_ever();
            }),
            128 + SIGINT);
}

// As timeout(1) sends them.
TEST(Interrupt, TheSameSignalSentTwiceIsOneRequest) {
  EXPECT_EQ(exit_code_of([] {
              {
                const HoldStop hold;
                send(SIGTERM);
                wait_for_request();
                send(SIGTERM);
                ::usleep(50'000);
              }
              end_if_stopping();
            }),
            3);
}

TEST(Interrupt, ASecondSignalEndsACleanupThatHangs) {
  EXPECT_EQ(exit_code_of([] {
              const StopCleanup hangs([] { wait_for_ever(); });
              send(SIGTERM);
              wait_for_request();
              ::usleep(400'000);
              send(SIGTERM);
              wait_for_ever();
            }),
            128 + SIGTERM);
}

TEST(Interrupt, WhatACleanupThrowsIsDropped) {
  const test::ScratchDirectory scratch;
  EXPECT_EQ(exit_code_of([&] {
              const StopCleanup throws([] { throw std::bad_alloc(); });
              const StopCleanup next([&] { write_file(scratch / "next", "done"); });
              send(SIGTERM);
              wait_for_ever();
            }),
            3);
  EXPECT_EQ(read_file(scratch / "next"), "done");
}

// Stays in its sync for ever.
class EndlessSync final : public FileSystem {
 public:
  void sync(int, const std::string&) override {
    send(SIGTERM);
    wait_for_ever();
  }
};

TEST(Interrupt, NoTemporaryIsLeftOfAFileThatWasBeingWritten) {
  const test::ScratchDirectory scratch;
  write_file(scratch / "file", "before");
  EXPECT_EQ(exit_code_of([&] {
              EndlessSync endless;
              replace_file_system(&endless);
              write_file_atomically(scratch / "file", "after");
            }),
            3);
  EXPECT_EQ(file_system().list(scratch.path()), std::vector<std::string>{"file"});
  EXPECT_EQ(read_file(scratch / "file"), "before");
}

TEST(Interrupt, WorkIsGivenUpAtItsPointsAndNowhereElse) {
  interruption_point();
  request_stop(SIGTERM);
  interruption_point();
  end_if_stopping();  // nobody watches: a larger process goes on
  {
    const Interruptible work;
    interruption_point();  // nobody would catch it
    const HoldStop hold;
    EXPECT_THROW(interruption_point(), Interrupted);
    { const Interruptible inner; }
    EXPECT_THROW(interruption_point(), Interrupted);
    clear_stop_signal();
    interruption_point();
  }
  const HoldStop hold;
  request_stop(SIGINT);
  EXPECT_EQ(stop_signal(), SIGINT);
  interruption_point();
  clear_stop_signal();
}

}  // namespace
}  // namespace linnet
