// Readers of a run beside its trainer, which deletes checkpoints: they read another one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "recipes/engine/checkpoint_store.h"
#include "tests/file_failures.h"

namespace linnet {
namespace {

std::map<std::string, std::string> files_of(int64_t step) {
  return {{"weights.h5", concat("weights of step ", step)}, {"state.json", std::to_string(step)}};
}

// Saves two steps and keeps one, before the `at`-th call of a reader (from 0), or before every
// `every`-th.
class TrainerBeside final : public FileSystem {
 public:
  TrainerBeside(std::string run, bool best, int64_t at, int64_t every = 0)
      : store_(std::move(run), 1, "trainer"), best_(best), at_(at), every_(every) {
    replace_file_system(this);
  }
  ~TrainerBeside() override { replace_file_system(nullptr); }
  int64_t calls() const { return calls_; }

  int open(const std::string& path, OpenMode mode) override {
    go_on();
    return FileSystem::open(path, mode);
  }
  std::vector<std::string> list(const std::string& path) override {
    go_on();
    return FileSystem::list(path);
  }
  std::optional<FileStatus> status(const std::string& path) override {
    go_on();
    return FileSystem::status(path);
  }
  void sync(int, const std::string&) override {}
  void sync_directory(const std::string&) override {}

 private:
  void go_on() {
    if (saving_) return;
    const int64_t call = calls_++;
    if (call != at_ && (every_ == 0 || call % every_ != 0)) return;
    saving_ = true;
    for (int i = 0; i < 2; ++i) {
      ++step_;
      store_.save(step_, files_of(step_), JsonValue::object());
      if (best_) store_.mark_best(step_, "nll", 1.0 / static_cast<double>(step_));
    }
    saving_ = false;
  }

  CheckpointStore store_;
  bool best_;
  int64_t at_, every_;
  int64_t calls_ = 0, step_ = 1;
  bool saving_ = false;
};

void save_first(const std::string& run, bool best) {
  const test::FailingFileSystem quick(-1, test::Failure::no_space);
  CheckpointStore store(run, 1);
  store.save(1, files_of(1), JsonValue::object());
  if (best) store.mark_best(1, "nll", 1);
}

// Without a word to the user, for whom nothing is wrong.
void expect_read(const std::string& run, bool best, int64_t at, int64_t every = 0) {
  SCOPED_TRACE(concat("best ", best, ", at ", at, ", every ", every));
  testing::internal::CaptureStderr();
  Checkpoint found;
  {
    const TrainerBeside trainer(run, best, at, every);
    EXPECT_NO_THROW(found = load_found_checkpoint(run));
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_GE(found.step, 1);
  EXPECT_EQ(found.files, files_of(found.step));
}

TEST(CheckpointReaders, ReadAnotherWhereTheirsIsDeletedAtAnyCall) {
  for (const bool best : {false, true}) {
    int64_t calls = 0;
    {
      const test::ScratchDirectory scratch;
      save_first(scratch.path(), best);
      const TrainerBeside counting(scratch.path(), best, -1);
      EXPECT_EQ(load_found_checkpoint(scratch.path()).step, 1);
      calls = counting.calls();
    }
    ASSERT_GT(calls, 10);
    for (int64_t at = 0; at < calls; ++at) {
      const test::ScratchDirectory scratch;
      save_first(scratch.path(), best);
      expect_read(scratch.path(), best, at);
    }
    // A trainer that is quick, for a while.
    for (const int64_t every : {60, 83, 131}) {
      const test::ScratchDirectory scratch;
      save_first(scratch.path(), best);
      expect_read(scratch.path(), best, -1, every);
    }
  }
}

TEST(CheckpointReaders, OneThatIsNamedIsNotExchangedForAnother) {
  const test::ScratchDirectory scratch;
  save_first(scratch.path(), false);
  const std::string named = CheckpointStore(scratch.path()).path_of(1);
  const TrainerBeside trainer(scratch.path(), false, 3);
  EXPECT_THROW(load_found_checkpoint(named), Error);
}

}  // namespace
}  // namespace linnet
