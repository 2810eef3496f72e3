// The lock of a run directory: one trainer at a time, named to the next; readers go on beside it.
#include "recipes/engine/run_lock.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "recipes/engine/evaluate.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(RunLock, ASecondTrainerIsToldProcessHostAndStart) {
  const test::ScratchDirectory scratch;
  char host[256] = {};
  ASSERT_EQ(::gethostname(host, sizeof(host) - 1), 0);
  const RunLock lock(scratch.path());
  const auto second = [&] { const RunLock refused(scratch.path()); };
  EXPECT_EQ(test::causes_of<UsageError>(second), concat("conflict --out at ", scratch.path()));
  EXPECT_THAT(test::message_of(second),
              AllOf(HasSubstr(concat("process ", ::getpid(), " on ", host, " since 2")),
                    Not(HasSubstr("\n"))));
}

TEST(RunLock, TheIdOfARunStays) {
  const test::ScratchDirectory scratch;
  const test::ScratchDirectory other;
  std::string id;
  {
    const RunLock first(scratch.path());
    EXPECT_FALSE(first.marked_before());
    id = first.id();
    EXPECT_EQ(id.size(), 16u);
  }
  const RunLock next(scratch.path());
  EXPECT_TRUE(next.marked_before());
  EXPECT_EQ(next.id(), id);
  EXPECT_NE(RunLock(other.path()).id(), id);
}

TEST(RunLock, OfAKilledProcessIsTakenOver) {
  const test::ScratchDirectory scratch;
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const RunLock lock(scratch.path());
    if (::write(pipe[1], lock.id().data(), 16) != 16) ::_exit(1);
    for (;;) ::pause();
  }
  std::string id(16, ' ');
  ASSERT_EQ(::read(pipe[0], id.data(), 16), 16);
  const auto attempt = [&] { const RunLock lock(scratch.path()); };
  EXPECT_THAT(test::message_of<UsageError>(attempt), HasSubstr(concat("process ", child, " on ")));
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  testing::internal::CaptureStderr();
  const RunLock lock(scratch.path());
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(concat("process ", child, " on ")));
  EXPECT_EQ(lock.id(), id);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST(RunLock, AMarkThatWasCutShortIsMended) {
  for (const char* cut :
       {"", "linnet", "linn\nlinnet-", "linnet-run 0123", "linnet-run 0123\nprocess 1 on"}) {
    const test::TemporaryFolder folder;
    folder.write("run.lock", cut);
    EXPECT_NE(is_marked_as_run(folder.path()), has_unfinished_mark(folder.path())) << cut;
    const std::string id = RunLock(folder.path()).id();
    EXPECT_EQ(id.size(), 16u) << cut;
    EXPECT_TRUE(is_marked_as_run(folder.path())) << cut;
    EXPECT_FALSE(has_unfinished_mark(folder.path())) << cut;
    const RunLock next(folder.path());
    EXPECT_TRUE(next.marked_before()) << cut;
    EXPECT_EQ(next.id(), id) << cut;
  }
  const test::TemporaryFolder folder;
  for (const char* other : {"", "linnet-rum", "1234\n"}) {
    if (*other != '\0') folder.write("run.lock", other);
    EXPECT_FALSE(is_marked_as_run(folder.path())) << other;
    EXPECT_FALSE(has_unfinished_mark(folder.path())) << other;
  }
}

class LockedRun : public test::TinyRun {};

TEST_F(LockedRun, IsReadButNotTrained) {
  run(recipe({"train.max_steps=2"}), "run");
  const std::string metrics = read_file(out("run") + "/metrics.jsonl");
  {
    const RunLock lock(out("run"));
    EXPECT_EQ(evaluate(out("run"), {}).step, 2);
    EXPECT_EQ(load_model(out("run")).step, 2);
    const std::string refused = concat("conflict --out at ", out("run"));
    EXPECT_EQ(test::causes_of<UsageError>([&] { run(recipe(), "run"); }), refused);
    EXPECT_EQ(test::causes_of<UsageError>([&] { run(recipe(), "run", out("run")); }),
              concat("conflict --out at ", out("run")));
  }
  EXPECT_EQ(read_file(out("run") + "/metrics.jsonl"), metrics);
  EXPECT_EQ(run(recipe(), "run").progress.step, 7);
}

}  // namespace
}  // namespace linnet
