// Runs of earlier versions (tests/recipes/compatibility): their checkpoints load, score as they
// did, resume with the losses that the version recorded, and continue a text as it did.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/hdf5.h"
#include "data/word_tokenizer.h"
#include "recipes/engine/evaluate.h"
#include "recipes/engine/generator.h"
#include "recipes/engine/make_task.h"
#include "recipes/engine/run_state.h"
#include "tests/data_path.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

// Kernels of another vector width add in another order. A loss is a mean over 20 or more targets,
// each at most a few hundred f32 roundings (6e-8) from exact and in either direction, so that a few
// roundings are left: 1e-6 are 17 of them, and other instruction sets of the matrix products gave
// 2e-8. A moment, a counter or an average that is not restored changes the last loss or score by
// 1e-3 or more.
constexpr double kLossTolerance = 1e-6;
// The norm is dominated by a few parameters: fewer roundings cancel.
constexpr double kNormTolerance = 1e-5;

bool close(double value, double recorded, double tolerance) {
  return std::abs(value - recorded) <= tolerance * std::abs(recorded);
}

std::set<std::string> names_of(const StateTensors& tensors) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) names.insert(name);
  return names;
}

// The state that an optimizer keeps between updates.
std::set<std::string> state_names(OptimizerKind kind) {
  if (kind == OptimizerKind::sgd) return {"momentum", "updates"};
  if (kind == OptimizerKind::nag) return {"momentum", "previous_lr", "updates"};
  return {"m", "updates", "v"};
}

// A copy of all of them, which is the current folder: their recipes name the texts relative to it.
class Compatibility : public test::TinyRun {
 protected:
  void SetUp() override {
    TinyRun::SetUp();
    namespace fs = std::filesystem;
    const std::string copy = out("compatibility");
    fs::copy(test::source_dir() + "/tests/recipes/compatibility", copy,
             fs::copy_options::recursive);
    for (const fs::directory_entry& entry : fs::directory_iterator(copy)) {
      if (fs::exists(entry.path() / "checkpoints")) runs_.push_back(entry.path().filename());
    }
    std::sort(runs_.begin(), runs_.end());
    EXPECT_GE(runs_.size(), 6U);
    in_.emplace(copy);
  }
  void TearDown() override {
    in_.reset();
    TinyRun::TearDown();
  }
  static std::string checkpoint_of(const std::string& run) {
    const CheckpointStore store(run);
    EXPECT_EQ(store.steps(), std::vector<int64_t>{4}) << run;
    return store.path_of(4);
  }
  // The lines of metrics.jsonl: six updates, and a score after the fourth.
  struct Lines {
    std::vector<JsonValue> updates;
    JsonValue score;
  };
  static Lines lines_of(const std::string& run) {
    Lines lines;
    const std::string path = join_path(run, "metrics.jsonl"), text = read_file(path);
    for (size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
      JsonValue line = parse_json(text.substr(begin, text.find('\n', begin) - begin), path);
      if (line.find("nll") != nullptr)
        lines.score = std::move(line);
      else
        lines.updates.push_back(std::move(line));
    }
    EXPECT_EQ(lines.updates.size(), 6U) << run;
    EXPECT_EQ(lines.score.at("step").integer(), 4) << run;
    return lines;
  }

  // Scores a run directory or a checkpoint.
  static void expect_score(const std::string& path, int64_t step, const JsonValue& recorded) {
    const EvaluateReport report = evaluate(path, {});
    EXPECT_EQ(report.step, step) << path;
    EXPECT_EQ(report.data, "unchanged") << path;
    ASSERT_EQ(report.scores.size(), 1U) << path;
    const Score& score = report.scores[0];
    EXPECT_TRUE(close(score.nll(), recorded.at("nll").number(), kLossTolerance))
        << path << ": nll " << score.nll() << ", recorded " << recorded.dump();
    EXPECT_EQ(score.tokens, recorded.at(std::string(score.form->unit)).integer()) << path;
  }

  std::vector<std::string> runs_;
  std::optional<test::InFolder> in_;
};

TEST_F(Compatibility, ACheckpointHoldsStateCountersAndVocabulary) {
  int vocabularies = 0;
  for (const std::string& run : runs_) {
    SCOPED_TRACE(run);
    const Checkpoint checkpoint = load_checkpoint(checkpoint_of(run));
    const Recipe recipe = load_recipe(run + ".yaml");
    const LoadedModel loaded = load_model(run);
    EXPECT_EQ(loaded.step, 4);
    Updater updater = make_updater(recipe, loaded.model->parameters());
    Progress progress;
    unpack_run(checkpoint, loaded.model->parameters(), updater, progress);

    EXPECT_EQ(progress.step, 4);
    EXPECT_EQ(progress.tokens, lines_of(run).updates[3].at("tokens").integer());
    const int64_t per_update = recipe.train.examples_per_update.value_or(
        recipe.train.tokens_per_update.value_or(0) / recipe.data.context);
    EXPECT_EQ(progress.examples, 4 * per_update);
    EXPECT_EQ(progress.evaluated.step, 4);

    const auto state = tensors_from_hdf5(checkpoint.files.at("optimizer.h5"), "optimizer.h5");
    EXPECT_EQ(names_of(state), state_names(recipe.optim.kind));
    EXPECT_EQ(state.at("updates").item(), 4);
    EXPECT_EQ(updater.optimizer->state().at("updates").item(), 4);
    ASSERT_EQ(checkpoint.files.contains("average.h5"), recipe.optim.ema.has_value());
    if (updater.average) {
      EXPECT_EQ(updater.average->state().at("updates").item(), 4);
    }

    const auto* text = recipe.data.options.find<TextEncoding>();
    if (text == nullptr || text->tokenizer.kind != "word") continue;
    const std::string recorded = read_file(join_path(run, "vocabulary.txt"));
    save_word_vocabulary(*loaded.tokenizer, "loaded.txt");
    EXPECT_EQ(read_file("loaded.txt"), recorded);
    save_word_vocabulary(*make_task(recipe)->tokenizer(), "built.txt");
    EXPECT_EQ(read_file("built.txt"), recorded);
    ++vocabularies;
  }
  EXPECT_GE(vocabularies, 2);
}

TEST_F(Compatibility, ACheckpointScoresAsRecorded) {
  for (const std::string& run : runs_) expect_score(run, 4, lines_of(run).score);
}

TEST_F(Compatibility, ARunResumesWithTheRecordedLosses) {
  for (const std::string& run : runs_) {
    const Lines recorded = lines_of(run);
    // The recipe as it was written: a default that changes would make it another one.
    const Recipe recipe = load_recipe(run + ".yaml");
    const TrainOutcome outcome = train(recipe, {run, "auto", {}, false});
    EXPECT_EQ(outcome.exit_code, 0) << run;
    EXPECT_EQ(outcome.progress.step, 6) << run;
    const Lines resumed = lines_of(run);
    for (const size_t i : {4, 5}) {
      const JsonValue &now = resumed.updates.at(i), &then = recorded.updates.at(i);
      const std::string label = concat(run, ": ", now.dump(), ", recorded ", then.dump());
      EXPECT_EQ(now.at("tokens").integer(), then.at("tokens").integer()) << label;
      EXPECT_EQ(now.at("lr").number(), then.at("lr").number()) << label;
      const auto agree = [&](const char* key, double tolerance) {
        return close(now.at(key).number(), then.at(key).number(), tolerance);
      };
      EXPECT_TRUE(agree("loss", kLossTolerance)) << label;
      EXPECT_TRUE(agree("grad_norm", kNormTolerance)) << label;
    }
    // The score of the averaged weights, where there are any.
    const std::string path = join_path(run, "score.json");
    const JsonValue score = parse_json(read_file(path), path).at("scores").elements().at(0);
    expect_score(CheckpointStore(run).path_of(6), 6, score);
  }
}

// The recorded tokens lead the others by 2e-3 or more in the logits: rounding does not reverse it.
TEST_F(Compatibility, AGreedyContinuationIsTheRecordedText) {
  int compared = 0;
  for (const std::string& run : runs_) {
    const std::string path = join_path(run, "generated.json");
    if (!exists(path)) continue;
    const JsonValue recorded = parse_json(read_file(path), path);
    const LoadedModel loaded = load_model(run);
    const std::vector<int32_t> prompt =
        encode_prompt(*loaded.tokenizer, recorded.at("prompt").text());
    GenerateOptions options;
    options.tokens = static_cast<int64_t>(recorded.at("tokens").elements().size());
    options.sampling.temperature = 0;
    const Generated result = generate(*loaded.model, prompt, options);
    EXPECT_EQ(continuation(*loaded.tokenizer, prompt, result.tokens), recorded.at("text").text())
        << run;
    ++compared;
  }
  EXPECT_GE(compared, 1);
}

}  // namespace
}  // namespace linnet
