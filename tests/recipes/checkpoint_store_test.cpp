// Checkpoints: no failing call, flipped byte or dead process may cost the last good one.
#include "recipes/engine/checkpoint_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/files.h"
#include "core/hash.h"
#include "tests/error_helpers.h"
#include "tests/file_failures.h"

namespace linnet {
namespace {

using test::FailingFileSystem;
using test::Failure;
using test::ScratchDirectory;
using testing::ElementsAre;
using testing::HasSubstr;

using Files = std::map<std::string, std::string>;

Files files_of(int64_t step) {
  return {{"weights.h5", concat("weights of step ", step, std::string(500, '\0'))},
          {"state.json", concat("{\"step\": ", step, "}")},
          {"empty", ""}};
}

JsonValue metadata_of(int64_t step) {
  return JsonValue::object().set("tokens", step * 1000);
}

void save(CheckpointStore& store, int64_t step) {
  store.save(step, files_of(step), metadata_of(step));
}

// The newest valid checkpoint is whole and is the one of `step`.
void expect_newest(const std::string& run, int64_t step) {
  const NewestCheckpoint newest = CheckpointStore(run).newest_valid();
  ASSERT_TRUE(newest.path.has_value());
  const Checkpoint loaded = load_checkpoint(*newest.path);
  EXPECT_EQ(loaded.step, step);
  EXPECT_EQ(loaded.files, files_of(step));
  EXPECT_EQ(loaded.metadata.at("tokens").integer(), step * 1000);
}

template <typename Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(CheckpointStore, SavesAndLoads) {
  const ScratchDirectory scratch;
  CheckpointStore store(scratch / "run");
  EXPECT_FALSE(store.newest_valid().path.has_value());
  EXPECT_THAT(store.steps(), ElementsAre());
  EXPECT_EQ(store.save(7, files_of(7), metadata_of(7)), scratch / "run/checkpoints/step-00000007");
  expect_newest(scratch / "run", 7);
  save(store, 123456789);
  expect_newest(scratch / "run", 123456789);
  EXPECT_THAT(store.steps(), ElementsAre(7, 123456789));
}

TEST(CheckpointStore, KeepsTheNewestAndTheBest) {
  const ScratchDirectory scratch;
  CheckpointStore store(scratch.path(), 2);
  for (int64_t step = 1; step <= 5; ++step) {
    save(store, step);
    if (step == 2) store.mark_best(2, "perplexity", 3.5);
  }
  EXPECT_THAT(store.steps(), ElementsAre(2, 4, 5));
  ASSERT_TRUE(store.best().has_value());
  EXPECT_EQ(store.best()->step, 2);
  EXPECT_EQ(store.best()->metric, "perplexity");
  EXPECT_EQ(store.best()->value, 3.5);
  EXPECT_EQ(find_checkpoint(scratch.path()), store.path_of(2));
  store.mark_best(5, "perplexity", 3.0);
  save(store, 6);
  EXPECT_THAT(store.steps(), ElementsAre(5, 6));
  EXPECT_EQ(test::causes_of([&] { store.mark_best(4, "perplexity", 1); }), "not_found");
  EXPECT_EQ(test::causes_of<UsageError>([&] { CheckpointStore(scratch.path(), 0); }),
            "out_of_range checkpoint.keep");
}

TEST(CheckpointStore, ADamagedBestFileDeletesNothing) {
  const ScratchDirectory scratch;
  CheckpointStore store(scratch.path(), 1);
  save(store, 1);
  store.mark_best(1, "nll", 1);
  write_file(scratch / "checkpoints/best.json", "{\"step\"");
  testing::internal::CaptureStderr();
  save(store, 2);
  EXPECT_EQ(find_checkpoint(scratch.path()), store.path_of(2));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("best.json is damaged"));
  EXPECT_THAT(store.steps(), ElementsAre(1, 2));
}

TEST(CheckpointStore, OneStepCanBeSavedAgain) {
  const ScratchDirectory scratch;
  CheckpointStore store(scratch.path(), 1);
  store.save(3, {{"weights.h5", "old"}}, JsonValue::object());
  save(store, 3);
  expect_newest(scratch.path(), 3);
  EXPECT_THAT(file_system().list(scratch / "checkpoints"), ElementsAre("step-00000003"));
}

// Fails every call of a save in turn, in every way, with the disk failing once or for good.
void fail_every_call(int64_t old_step, int64_t new_step) {
  int64_t calls = 0;
  {
    const ScratchDirectory scratch;
    CheckpointStore store(scratch.path(), 1);
    save(store, old_step);
    const FailingFileSystem counting(-1, Failure::no_space);
    save(store, new_step);
    calls = counting.calls();
  }
  ASSERT_GT(calls, 20);
  int64_t refused = 0;
  for (const Failure failure : {Failure::no_space, Failure::input_output, Failure::short_write}) {
    for (const bool persistent : {false, true}) {
      for (int64_t n = 0; n < calls; ++n) {
        SCOPED_TRACE(concat("call ", n, ", persistent ", persistent));
        const ScratchDirectory scratch;
        CheckpointStore store(scratch.path(), 1);
        {
          const FailingFileSystem never(-1, failure);
          save(store, old_step);
        }
        std::string error;
        testing::internal::CaptureStderr();
        {
          const FailingFileSystem failing(n, failure, persistent);
          error = error_of([&] { save(store, new_step); });
          ASSERT_TRUE(failing.failed());
        }
        const std::string warnings = testing::internal::GetCapturedStderr();
        const std::string& told = error.empty() ? warnings : error;
        EXPECT_THAT(told, HasSubstr(scratch.path()));
        EXPECT_THAT(told, HasSubstr(failure == Failure::input_output ? "Input/output error"
                                                                     : "No space left on device"));
        if (!error.empty()) {
          EXPECT_THAT(error, HasSubstr(concat("step ", new_step)));
        }
        refused += error.empty() ? 0 : 1;
        // The old one, or, when only the clean-up or the last sync failed, the new one.
        const NewestCheckpoint newest = store.newest_valid();
        ASSERT_TRUE(newest.path.has_value());
        const int64_t step = load_checkpoint(*newest.path).step;
        EXPECT_TRUE(step == new_step || (step == old_step && !error.empty()));
        expect_newest(scratch.path(), step);
        // And the next save works and leaves nothing behind.
        {
          const FailingFileSystem never(-1, failure);
          save(store, new_step + 1);
        }
        expect_newest(scratch.path(), new_step + 1);
        EXPECT_THAT(file_system().list(scratch / "checkpoints"), testing::SizeIs(1));
      }
    }
  }
  EXPECT_GT(refused, calls);  // of 6 * calls trials, only those in the clean-up succeed
}

TEST(CheckpointStore, NoFailingCallLosesTheLastGoodOne) {
  fail_every_call(10, 20);
}

TEST(CheckpointStore, NoFailingCallLosesACheckpointThatIsReplaced) {
  fail_every_call(10, 10);
}

// Applies `damage` to the newest of two checkpoints: it must be detected, the file named, and the
// older one used.
void expect_detected(const std::string& run, const std::string& file, const std::string& damaged) {
  const CheckpointStore store(run);
  const std::string path = join_path(store.path_of(2), file);
  const std::string intact = read_file(path);
  write_file(path, damaged);
  // That a manifest and its hash do not agree is known, not which of them is damaged.
  EXPECT_EQ(test::causes_of([&] { load_checkpoint(store.path_of(2)); }, store.path_of(2)),
            concat("malformed at ", file == "manifest.xxh3" ? "manifest.json" : file));
  const NewestCheckpoint newest = store.newest_valid();
  EXPECT_EQ(newest.path, store.path_of(1));
  ASSERT_EQ(newest.skipped.size(), 1u);
  EXPECT_EQ(newest.skipped[0].path, store.path_of(2));
  EXPECT_THAT(newest.skipped[0].reason, HasSubstr(path));
  write_file(path, intact);
}

TEST(CheckpointStore, EveryFlippedOrMissingByteIsDetected) {
  const ScratchDirectory scratch;
  CheckpointStore store(scratch.path());
  save(store, 1);
  save(store, 2);
  int flips = 0;
  for (const std::string& file : file_system().list(store.path_of(2))) {
    const std::string intact = read_file(join_path(store.path_of(2), file));
    for (size_t i = 0; i < intact.size(); ++i) {
      std::string damaged = intact;
      damaged[i] ^= static_cast<char>(1 << (i % 8));
      expect_detected(scratch.path(), file, damaged);
      ++flips;
    }
    for (size_t bytes = 0; bytes < intact.size(); bytes += 1 + bytes / 4)
      expect_detected(scratch.path(), file, intact.substr(0, bytes));
    expect_detected(scratch.path(), file, intact + "x");
  }
  EXPECT_GT(flips, 1000);
  expect_newest(scratch.path(), 2);
}

TEST(CheckpointStore, MissingFilesAreDetected) {
  for (const std::string file : {"weights.h5", "empty", "manifest.json", "manifest.xxh3"}) {
    const ScratchDirectory scratch;
    CheckpointStore store(scratch.path());
    save(store, 1);
    save(store, 2);
    file_system().remove(join_path(store.path_of(2), file));
    const NewestCheckpoint newest = store.newest_valid();
    EXPECT_EQ(newest.path, store.path_of(1));
    ASSERT_EQ(newest.skipped.size(), 1u);
    EXPECT_THAT(newest.skipped[0].reason, HasSubstr(file));
  }
}

TEST(CheckpointStore, HostileManifestsAreRefused) {
  const ScratchDirectory scratch;
  CheckpointStore store(scratch.path());
  const std::string path = store.save(1, {{"a", "x"}}, JsonValue::object());
  const std::string intact = read_file(join_path(path, "manifest.json"));
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = intact;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  const size_t begin = intact.find('[') + 1;
  const std::string entry = intact.substr(begin, intact.find(']') - begin);
  for (const std::string& text :
       {replaced(entry, entry + "," + entry),
        replaced("\"name\": \"a\"", "\"name\": \"../../../secret\""),
        replaced("\"bytes\": 1", "\"bytes\": -1"), replaced("\"bytes\": 1", "\"bytes\": 1e9"),
        replaced("linnet-checkpoint", "other"), replaced("\"step\": 1", "\"step\": \"1\""),
        replaced("\"files\"", "\"flies\""), std::string("[]"), std::string(1000, '[')}) {
    write_file(join_path(path, "manifest.json"), text);
    write_file(join_path(path, "manifest.xxh3"), hash128_hex(text) + "\n");
    try {
      load_checkpoint(path);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::malformed) << text;
      EXPECT_EQ(error.place(), join_path(path, "manifest.json")) << text;
    }
  }
  const std::string other_step = replaced("\"step\": 1", "\"step\": 2");
  write_file(join_path(path, "manifest.json"), other_step);
  write_file(join_path(path, "manifest.xxh3"), hash128_hex(other_step) + "\n");
  EXPECT_FALSE(store.newest_valid().path.has_value());
}

TEST(CheckpointStore, ImpossibleNamesAreRefused) {
  const ScratchDirectory scratch;
  CheckpointStore store(scratch.path());
  for (const std::string name : {"", ".", "..", "a/b", "manifest.json", "manifest.xxh3"})
    EXPECT_THROW(store.save(1, {{name, "x"}}, JsonValue::object()), Error) << name;
  EXPECT_THROW(store.save(-1, {}, JsonValue::object()), Error);
}

TEST(CheckpointStore, AFullDiskIsSeenBeforeWriting) {
  class FullDisk final : public FileSystem {
   public:
    uint64_t free_bytes(const std::string&) override { return 1000; }
    size_t write_some(int, std::string_view, const std::string& path) override {
      throw Error("wrote to " + path);
    }
  };
  const ScratchDirectory scratch;
  CheckpointStore store(scratch.path());
  save(store, 1);
  FullDisk full;
  replace_file_system(&full);
  const std::string error = error_of([&] { save(store, 2); });
  replace_file_system(nullptr);
  EXPECT_THAT(error, HasSubstr("1000 bytes free"));
  expect_newest(scratch.path(), 1);
}

TEST(CheckpointStore, LeftoversOfADeadProcessAreCleared) {
  const ScratchDirectory scratch;
  CheckpointStore store(scratch.path());
  save(store, 1);
  const std::string folder = scratch / "checkpoints";
  create_directories(join_path(folder, "tmp-step-00000002"));
  write_file(join_path(folder, "tmp-step-00000002/weights.h5"), "half");
  // Died between the two renames of an exchange.
  file_system().rename(store.path_of(1), join_path(folder, "replaced-step-00000001"));
  expect_newest(scratch.path(), 1);
  save(store, 2);
  EXPECT_THAT(file_system().list(folder), ElementsAre("step-00000001", "step-00000002"));
  expect_newest(scratch.path(), 2);
  // Died after them; the new one is intact, or damaged meanwhile.
  for (const bool damaged : {false, true}) {
    file_system().rename(store.path_of(1), join_path(folder, "replaced-step-00000001"));
    store.save(1, damaged ? files_of(1) : Files{{"weights.h5", "new"}}, metadata_of(1));
    save(store, 3);
    EXPECT_THAT(file_system().list(folder),
                ElementsAre("step-00000001", "step-00000002", "step-00000003"));
  }
  EXPECT_EQ(load_checkpoint(store.path_of(1)).files, files_of(1));
}

TEST(CheckpointStore, GoingBackSetsLaterCheckpointsAside) {
  const ScratchDirectory scratch;
  CheckpointStore store(scratch.path(), 2);
  save(store, 10);
  save(store, 20);
  store.mark_best(20, "nll", 1.0);
  testing::internal::CaptureStderr();
  store.rewind_to(10);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("abandoned-step-00000020"));
  EXPECT_FALSE(store.best().has_value());
  expect_newest(scratch.path(), 10);
  save(store, 15);
  EXPECT_TRUE(exists(scratch / "checkpoints/abandoned-step-00000020"));
  save(store, 21);
  EXPECT_THAT(file_system().list(scratch / "checkpoints"),
              ElementsAre("step-00000015", "step-00000021"));
  store.rewind_to(21);
  EXPECT_THAT(store.steps(), ElementsAre(15, 21));
}

// Killed while its last checkpoint took the place of an older one: no save comes after.
TEST(CheckpointStore, WhatAKilledProcessLeftGoesWhenTrainingGoesOn) {
  const ScratchDirectory scratch;
  CheckpointStore store(scratch.path(), 3, "id");
  save(store, 5);
  for (const char* name : {"tmp-id-old-step-00000004", "tmp-id-step-00000006", "tmp-other"}) {
    create_directories(scratch / concat("checkpoints/", name));
  }
  store.rewind_to(5);
  EXPECT_THAT(file_system().list(scratch / "checkpoints"),
              ElementsAre("step-00000005", "tmp-other"));
}

TEST(CheckpointStore, UsersPathsAreUnderstood) {
  const ScratchDirectory scratch;
  for (const std::string& path : {scratch.path(), scratch / "absent"}) {
    EXPECT_EQ(test::causes_of<UsageError>([&] { find_checkpoint(path); }),
              concat("not_found at ", path));
  }
  CheckpointStore store(scratch.path());
  save(store, 1);
  save(store, 2);
  store.mark_best(1, "nll", 1.0);
  EXPECT_EQ(find_checkpoint(scratch.path()), store.path_of(1));
  EXPECT_EQ(find_checkpoint(store.path_of(2)), store.path_of(2));
  write_file(join_path(store.path_of(1), "weights.h5"), "damaged");
  testing::internal::CaptureStderr();
  EXPECT_EQ(find_checkpoint(scratch.path()), store.path_of(2));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("weights.h5 is damaged"));
  EXPECT_EQ(test::causes_of([&] { find_checkpoint(store.path_of(1)); }),
            concat("malformed at ", join_path(store.path_of(1), "weights.h5")));
}

}  // namespace
}  // namespace linnet
