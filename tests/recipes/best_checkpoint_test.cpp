// Which checkpoint best.json names, and what stands for it where it, or that checkpoint, is
// damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "recipes/engine/best_repair.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using BestOfARun = test::TinyRun;

TEST_F(BestOfARun, FollowsTheRecipe) {
  run(recipe({"checkpoint.best=none"}), "none");
  EXPECT_EQ(left("none").best_step, -1);
  EXPECT_EQ(test::causes_of<UsageError>([&] { run(recipe({"checkpoint.best=accuracy"}), "no"); }),
            "conflict checkpoint.best at command line: checkpoint.best");
  EXPECT_FALSE(exists(out("no")));
  run(classifier(), "accuracy");
  EXPECT_GT(left("accuracy").best_step, 0);
}

TEST_F(BestOfARun, IsNamedWhereACrashLeftItUnnamed) {
  run(recipe({"train.max_steps=4"}), "run");
  const int64_t best = left("run").best_step;
  EXPECT_EQ(best, 4);
  file_system().remove(join_path(out("run"), "checkpoints/best.json"));
  run(recipe({"train.max_steps=4"}), "run");
  EXPECT_EQ(left("run").best_step, best);
}

// The run and its readers find the best one again by the evaluations of the checkpoints.
TEST_F(BestOfARun, IsNamedAgainInADamagedFile) {
  const std::vector<std::string> changes = {"evaluate.every_steps=1", "checkpoint.every_steps=1",
                                            "checkpoint.keep=9"};
  std::vector<std::string> part = changes;
  part.emplace_back("train.max_steps=5");
  run(recipe(part), "run");
  const CheckpointStore store(out("run"));
  const std::string path = join_path(out("run"), "checkpoints/best.json");
  const std::string intact = read_file(path);
  ASSERT_EQ(store.best()->metric, "nll");
  const std::string best = store.best()->path;
  set_log_level(LogLevel::warning);
  for (const std::string damaged :
       {"", "{\"step\"", "[]", "{\"step\": \"2\"}", "{\"step\": 7, \"metric\": \"nll\"}",
        "{\"step\": 99, \"metric\": \"nll\", \"value\": -1}", "\xff", "absent"}) {
    SCOPED_TRACE(damaged);
    damaged == "absent" ? file_system().remove(path) : write_file(path, damaged);
    testing::internal::CaptureStderr();
    EXPECT_EQ(find_checkpoint(out("run")), best);
    run(recipe(part), "run");
    EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("best.json"));
    EXPECT_EQ(read_file(path), intact);
  }
  set_log_level(LogLevel::error);
  // A damaged checkpoint is not named.
  write_file(join_path(best, "weights.h5"), "damaged");
  write_file(path, "{");
  EXPECT_NE(find_checkpoint(out("run")), best);
  // Without an evaluation there is no best one.
  CheckpointStore writer(out("run"));
  repair_best(writer, "none");
  EXPECT_FALSE(exists(path));
}

// Readers take the best of the others, and the run names it, going back behind the damage.
TEST_F(BestOfARun, HasASuccessorWhereItIsDamaged) {
  const std::vector<std::string> changes = {"evaluate.every_steps=1", "checkpoint.every_steps=1",
                                            "checkpoint.keep=9", "train.max_steps=5"};
  run(recipe(changes), "run");
  CheckpointStore store(out("run"), 9);
  // As if it had been evaluated at these steps alone, the second being the best.
  const auto evaluated = [&](int64_t step, double nll) {
    Checkpoint saved = load_checkpoint(store.path_of(step));
    saved.metadata.set("evaluated",
                       JsonValue::object().set("step", step).set("nll", nll).set("accuracy", 0));
    store.save(step, saved.files, saved.metadata);
  };
  for (const auto& [step, nll] : {std::pair(1, 3.0), {2, 1.0}, {3, 2.0}, {4, 1e10}, {5, 1e10}}) {
    evaluated(step, nll);
  }
  store.mark_best(2, "nll", 1.0);
  write_file(join_path(store.path_of(2), "weights.h5"), "damaged");
  set_log_level(LogLevel::warning);
  testing::internal::CaptureStderr();
  EXPECT_EQ(find_checkpoint(out("run")), store.path_of(3));
  std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, testing::HasSubstr("the best checkpoint is skipped"));
  EXPECT_THAT(log, testing::HasSubstr(concat("taking ", store.path_of(3), " instead, the best")));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  testing::internal::CaptureStderr();
  run(recipe(changes), "run");
  log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, testing::HasSubstr("which is damaged; by the evaluations of the checkpoints, "
                                      "the best is that of step 3"));
  EXPECT_EQ(store.best()->step, 3);
  for (const int64_t step : {3, 4, 5}) remove_all(store.path_of(step));
  store.save(4, load_checkpoint(store.path_of(1)).files, JsonValue::object());
  store.mark_best(4, "nll", 0.5);
  remove_all(store.path_of(2));
  write_file(join_path(store.path_of(4), "weights.h5"), "damaged");
  testing::internal::CaptureStderr();
  run(recipe(changes), "run");
  log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, testing::HasSubstr("which is damaged; by the evaluations of the checkpoints, "
                                      "the best is that of step 1"));
  EXPECT_THAT(log, testing::Not(testing::HasSubstr("no checkpoint")));
  set_log_level(LogLevel::error);
  EXPECT_EQ(left("run").step, 5);
}

TEST_F(BestOfARun, DamageOfItsFileDoesNotStopTheRun) {
  const Recipe whole = recipe({"evaluate.every_steps=1"});
  run(whole, "straight");
  // Damages best.json before each evaluation is written down.
  class Damage final : public FileSystem {
   public:
    explicit Damage(std::string path) : path_(std::move(path)) { replace_file_system(this); }
    ~Damage() override { replace_file_system(nullptr); }
    size_t write_some(int descriptor, std::string_view bytes, const std::string& path) override {
      if (path.ends_with("metrics.jsonl") && bytes.find("evaluation") != std::string_view::npos &&
          std::filesystem::exists(path_)) {
        std::filesystem::resize_file(path_, 5);
        ++times;
      }
      return FileSystem::write_some(descriptor, bytes, path);
    }
    int times = 0;

   private:
    std::string path_;
  };
  int times = 0;
  {
    Damage damage(join_path(out("damaged"), "checkpoints/best.json"));
    run(whole, "damaged");
    times = damage.times;
  }
  EXPECT_GE(times, 5);
  expect_equal(left("damaged"), left("straight"), "damaged");
}

}  // namespace
}  // namespace linnet
