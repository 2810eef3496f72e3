// An interrupted run continues bit for bit: weights, moments, averages, metrics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "attention/registry.h"
#include "recipes/engine/run_directory.h"
#include "tests/recipes/row_kinds.h"
#include "tests/recipes/stop_at_line.h"

namespace linnet {
namespace {

using testing::HasSubstr;

class Resume : public test::RowKinds {
 protected:
  // Seven updates at once, and the same cut after each of `cuts` updates.
  void expect_continues(const Recipe& recipe, const std::string& label,
                        const std::vector<int64_t>& cuts) {
    run(recipe, label + "-straight");
    const Left straight = left(label + "-straight");
    EXPECT_EQ(straight.step, 7) << label;
    for (const int64_t cut : cuts) {
      const std::string name = concat(label, "-", cut);
      Recipe part = recipe;
      part.train.max_steps = cut;
      EXPECT_EQ(run(part, name).progress.step, cut);
      EXPECT_EQ(run(recipe, name).progress.step, 7);
      expect_equal(left(name), straight, name);
    }
  }
};

TEST_F(Resume, ContinuesBitForBit) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> variants = {
      {"plain", {}},
      {"accumulation", {"train.micro_batch=4"}},
      {"dropout",
       {"model.dropout=0.2", "model.activation_dropout=0.1", "model.layer_dropout=0.3",
        "train.micro_batch=4"}},
      // 74 windows of 16 tokens: the fourth update of 24 windows begins another epoch.
      {"epochs", {"train.tokens_per_update=384", "train.micro_batch=10"}},
      {"one_stream", {"data.cross_documents=true"}},
      {"average", {"optim.ema={decay: 0.8, warmup: true}"}},
      {"bf16", {"train.precision=bf16", "model.dropout=0.1"}},
      {"recompute", {"train.recompute=block", "model.dropout=0.1"}},
      {"nag",
       {"optim={kind: nag, lr: 0.05}", "optim.schedule={kind: inverse_sqrt, warmup_steps: 3}"}},
      {"words", {"data.tokenizer={kind: word}"}},
      {"kv_heads", {"model.attention={name: softmax}", "model.kv_heads=1"}},
      {"adaptive",
       {"model.embedding=adaptive", "model.cutoffs=[101, 112]", "model.cutoff_factor=2",
        "model.head_dropout=0.2", "model.dropout=0.1", "model.final_norm=false",
        "train.micro_batch=4"}},
  };
  for (const auto& [label, overrides] : variants) {
    expect_continues(recipe(overrides), label, {1, 3, 4});
  }
}

TEST_F(Resume, ContinuesEveryMechanismBitForBit) {
  int checked = 0;
  for (const Mechanism& mechanism : mechanisms()) {
    if (!test::small_traits(mechanism).causal) continue;
    const Recipe changed = recipe({test::small_attention(mechanism), "model.width=16",
                                   "train.micro_batch=4", "model.dropout=0.1"});
    expect_continues(changed, mechanism.name, {3});
    ++checked;
  }
  EXPECT_GE(checked, 3);
}

TEST_F(Resume, ContinuesABasisThatIsMadeOrthonormalBitForBit) {
  const std::string attention =
      "model.attention={name: lavo, rank: 4, window: 5, basis_train: qr, pre_agg: separate}";
  expect_continues(recipe({attention}), "qr", {1, 3, 4});
  // The values of an update are those that a checkpoint's weights give.
  expect_continues(recipe({attention, "train.precision=bf16"}), "qr_bf16", {3});
}

TEST_F(Resume, ContinuesOnEveryKindOfRowsBitForBit) {
  for (const auto& [name, recipe] : row_kinds()) expect_continues(recipe, name, {1, 3, 4});
  expect_continues(classifier({"model.pooling=cls", "model.attention.name=linear"}), "linear", {4});
  expect_continues(classifier({"model.head=pooler", "model.dropout=0.1", "model.positions=learned",
                               "model.position_offset=2", "model.embedding_norm=true",
                               "model.norm_position=post", "train.recompute=block"}),
                   "pooler", {3});
  expect_continues(
      classifier({"model.kind=decoder", "model.head=last_token", "model.attention.name=linear"}),
      "last_token", {3});
  expect_continues(
      classifier({"model.kind=encoder_decoder", "model.attention={name: softmax, preset: t5}",
                  "model.cross_attention={name: performer, features: 4}", "model.norm=rms",
                  "model.bias=false", "model.activation=geglu", "model.positions=none",
                  "model.dropout=0.1", "train.recompute=block"}),
      "encoder_decoder", {3});
  expect_continues(masked({"train.recompute=block", "train.precision=bf16"}), "masked_bf16", {3});
}

TEST_F(Resume, GoesBackToTheLastCheckpointAfterACrash) {
  const Recipe whole = recipe({"checkpoint.every_steps=3"});
  run(whole, "straight");
  Recipe part = whole;
  part.train.max_steps = 5;
  run(part, "crashed");
  // As if the process had died in update 5: lines up to it are there, its checkpoint is not.
  remove_all(CheckpointStore(out("crashed")).path_of(5));
  remove_all(CheckpointStore(out("crashed")).path_of(4));  // of the evaluation of step 4
  file_system().remove(join_path(out("crashed"), "checkpoints/best.json"));
  CheckpointStore(out("crashed")).mark_best(2, "nll", 1e9);
  run(whole, "crashed");
  expect_equal(left("crashed"), left("straight"), "crashed");
}

TEST_F(Resume, SavesAndStopsAtASignalAndContinues) {
  const Recipe whole = recipe({"evaluate.at_end=true", "optim.ema={decay: 0.8}"});
  run(whole, "straight");
  const Left straight = left("straight");
  EXPECT_EQ(straight.metrics.size(), 7U + 4U);
  // Steps 2 and 4 are evaluated: the signal comes before the evaluation. Step 7 is the last.
  for (const int64_t step : {1, 4, 7}) {
    for (const int signal : {SIGTERM, SIGUSR1}) {
      const std::string name = concat("stopped-", step, "-", signal);
      {
        const test::StopAtLine interruption(concat("\"step\": ", step, ", \"tokens\""), signal);
        const TrainOutcome outcome = run(whole, name);
        EXPECT_EQ(outcome.exit_code, 3) << name;
        EXPECT_EQ(outcome.progress.step, step) << name;
      }
      EXPECT_EQ(left(name).step, step);
      clear_stop_signal();
      const TrainOutcome outcome = run(whole, name);
      EXPECT_EQ(outcome.exit_code, 0) << name;
      EXPECT_EQ(outcome.progress.step, 7) << name;
      expect_equal(left(name), straight, name);
    }
  }
}

TEST_F(Resume, AnUpdateThatAStopCutShortIsMadeAgain) {
  const Recipe whole = recipe({"train.micro_batch=1", "train.tokens_per_update=480",
                               "evaluate.at_end=true", "optim.ema={decay: 0.8}"});
  run(whole, "straight");
  const Left straight = left("straight");
  std::mt19937_64 random(4);
  int stops = 0;
  for (uint64_t start = 0; start < 12; ++start) {
    std::thread other([delay = start * (random() % 10'000)] {
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
      request_stop(SIGTERM);
    });
    const TrainOutcome outcome = run(whole, "stopped");
    other.join();
    clear_stop_signal();
    if (outcome.exit_code == 0) break;
    EXPECT_EQ(outcome.exit_code, kStopped);
    ++stops;
  }
  EXPECT_GT(stops, 0);
  EXPECT_EQ(run(whole, "stopped").exit_code, 0);
  expect_equal(left("stopped"), straight, "stopped");
}

TEST_F(Resume, TrainingInstallsNoSignalHandler) {
  run(recipe({"train.max_steps=1"}), "run");
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT}) {
    struct sigaction action = {};
    ASSERT_EQ(sigaction(signal, nullptr, &action), 0);
    EXPECT_EQ(action.sa_handler, SIG_DFL) << signal;
  }
}

TEST_F(Resume, AFinishedRunStaysAsItIsUntilItsLimitIsRaised) {
  const Recipe whole = recipe({"evaluate.at_end=true"});
  run(whole, "run");
  const Left before = left("run");
  EXPECT_EQ(run(whole, "run").progress.step, 7);
  expect_equal(left("run"), before, "resumed");
  EXPECT_EQ(run(recipe({"train.max_steps=9", "evaluate.at_end=true"}), "run").progress.step, 9);
  run(recipe({"train.max_steps=9"}), "straight");
  EXPECT_TRUE(left("run").files.at("weights.h5") == left("straight").files.at("weights.h5"));
}

TEST_F(Resume, SaysWhenAScheduleChangesItsLength) {
  const std::string linear = "optim.schedule={kind: linear, warmup_steps: 2}";
  run(recipe({linear, "train.max_steps=4"}), "run");
  set_log_level(LogLevel::warning);
  testing::internal::CaptureStderr();
  run(recipe({linear, "train.max_steps=4"}), "run");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  run(recipe({linear, "train.max_steps=8"}), "run");
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("the learning rate goes on at "));
}

TEST_F(Resume, StopsByTokensAndEpochs) {
  EXPECT_EQ(run(recipe({"train.max_steps=null", "train.max_tokens=200"}), "tokens").progress.step,
            3);
  // 74 windows, 6 an update.
  EXPECT_EQ(run(recipe({"train.max_steps=null", "train.max_epochs=0.5"}), "epochs").progress.step,
            7);
}

// A version with further keys goes on with the runs of an older one.
TEST_F(Resume, AKeyThatTheCheckpointDoesNotKnowHasItsDefault) {
  run(recipe(), "straight");
  run(recipe({"train.max_steps=3"}), "older");
  CheckpointStore store(out("older"));
  Checkpoint checkpoint = load_checkpoint(store.path_of(3));
  std::string& text = checkpoint.files.at("recipe.yaml");
  const size_t key = text.find("norm_epsilon:");
  ASSERT_NE(key, std::string::npos);
  const size_t line = text.rfind('\n', key) + 1;
  text.erase(line, text.find('\n', key) + 1 - line);
  store.save(3, checkpoint.files, checkpoint.metadata);
  EXPECT_EQ(first_difference(recipe().resolved, parse_yaml(text, "recipe.yaml")),
            "model.norm_epsilon");
  run(recipe(), "older");
  expect_equal(left("older"), left("straight"), "an older checkpoint");
}

// Such as one of a plugin that is not loaded.
TEST_F(Resume, ACheckpointWhoseRecipeCannotBeReadIsAnotherRecipes) {
  run(recipe({"train.max_steps=3"}), "foreign");
  CheckpointStore store(out("foreign"));
  Checkpoint checkpoint = load_checkpoint(store.path_of(3));
  std::string& text = checkpoint.files.at("recipe.yaml");
  const size_t name = text.find("norm_epsilon:");
  ASSERT_NE(name, std::string::npos);
  text.replace(name, 4, "nerm");
  store.save(3, checkpoint.files, checkpoint.metadata);
  EXPECT_THAT(test::message_of<UsageError>([&] { run(recipe(), "foreign"); }),
              HasSubstr("was made with another recipe"));
}

TEST_F(Resume, RefusesAnotherRecipeInTheSameDirectory) {
  run(recipe(), "run");
  const std::string before = read_file(join_path(out("run"), "metrics.jsonl"));
  const auto refusal = [&](const std::vector<std::string>& changes, const std::string& resume) {
    return test::causes_of<UsageError>([&] { run(recipe(changes), "run", resume); },
                                       join_path(out("run"), "checkpoints"));
  };
  EXPECT_EQ(refusal({"model.width=16"}, "auto"), "conflict model.width at step-00000007");
  EXPECT_EQ(refusal({"seed=6"}, "auto"), "conflict seed at step-00000007");
  EXPECT_EQ(refusal({"optim.lr=0.1"}, out("run")), "conflict optim.lr at step-00000007");
  EXPECT_EQ(refusal({}, "never"), concat("conflict --out at ", out("run")));
  EXPECT_EQ(read_file(join_path(out("run"), "metrics.jsonl")), before);
  // Keys that do not change an update may change.
  run(recipe({"train.max_steps=8", "train.micro_batch=2", "evaluate.every_steps=8"}), "run");
  EXPECT_EQ(left("run").step, 8);
}

// A version that refuses what an older one accepted goes on with its runs.
TEST_F(Resume, ARunWithAnOptionWithoutEffectGoesOn) {
  const auto waiting = [&](int64_t wait) {
    return recipe({concat("model.attention={name: leapformer, wait: ", wait, "}")});
  };
  run(waiting(0), "straight");
  Recipe part = waiting(0);
  part.train.max_steps = 3;
  run(part, "older");
  CheckpointStore store(out("older"));
  Checkpoint checkpoint = load_checkpoint(store.path_of(3));
  std::string& text = checkpoint.files.at("recipe.yaml");
  const size_t wait = text.find("wait: 0");
  ASSERT_NE(wait, std::string::npos);
  text.replace(wait, 7, "wait: 3");
  store.save(3, checkpoint.files, checkpoint.metadata);
  EXPECT_EQ(run(waiting(3), "older").progress.step, 7);
  expect_equal(left("older"), left("straight"), "goes on");
  EXPECT_EQ(test::causes_of<UsageError>([&] { run(waiting(3), "new"); }),
            "conflict model.attention.wait at command line: model.attention");
  EXPECT_FALSE(exists(out("new")));
}

TEST_F(Resume, TakesADirectoryByName) {
  run(recipe({"train.max_steps=3"}), "run");
  EXPECT_EQ(train(recipe(), {"", out("run"), {}, false}).progress.step, 7);
  EXPECT_EQ(test::causes_of<UsageError>([&] {
              train(recipe(), {"", out("none"), {}, false});
            }),
            concat("not_found --resume at ", out("none")));
  EXPECT_EQ(test::causes_of<UsageError>([&] {
              train(recipe(), {out("other"), out("run"), {}, false});
            }),
            concat("conflict --out at ", out("other")));
}

TEST_F(Resume, ARunDirectoryHoldsWhatItPromises) {
  run(recipe({"generate.tokens=5"}), "run");
  for (const char* name : {"recipe.yaml", "environment.json", "metrics.jsonl", "tensorboard",
                           "checkpoints/step-00000007", "log.txt", "report.html", "sample.txt"}) {
    EXPECT_TRUE(exists(join_path(out("run"), name))) << name;
  }
  EXPECT_TRUE(load_recipe(join_path(out("run"), "recipe.yaml")).resolved ==
              recipe({"generate.tokens=5"}).resolved);
  const JsonValue environment =
      parse_json(read_file(join_path(out("run"), "environment.json")), "e");
  for (const char* key : {"linnet", "git", "machine", "libraries", "seed"}) {
    EXPECT_NE(environment.find(key), nullptr) << key;
  }
}

TEST_F(Resume, ARunWithoutADecodeStateEndsWithoutASample) {
  const std::string attention = test::small_attention(find_mechanism("reformer"));
  EXPECT_EQ(run(recipe({"generate.tokens=5", attention, "model.width=16"}), "run").exit_code, 0);
  EXPECT_FALSE(exists(join_path(out("run"), "sample.txt")));
  EXPECT_TRUE(exists(join_path(out("run"), "report.html")));
}

TEST_F(Resume, AVocabularyBuiltForARunIsThereForTheNext) {
  const std::vector<std::string> limits = {"train.max_steps=1", "data.tokenizer.kind=word"};
  run(recipe(limits), "run");
  const std::string path = join_path(out("run"), "vocabulary.txt");
  std::vector<std::string> again = limits;
  again.push_back("data.tokenizer.path=" + path);
  run(recipe(again), "again");
  EXPECT_EQ(left("run").files.at("tokenizer.bin"), left("again").files.at("tokenizer.bin"));
  EXPECT_EQ(read_file(path), read_file(join_path(out("again"), "vocabulary.txt")));
}

TEST_F(Resume, ADryRunMakesNoDirectory) {
  const TrainOutcome outcome = train(recipe(), {out("dry"), "auto", {}, true});
  EXPECT_EQ(outcome.progress.step, 1);
  EXPECT_FALSE(exists(out("dry")));
}

TEST_F(Resume, ADryRunUpdatesWhatAResumeWould) {
  run(recipe({"train.max_steps=4"}), "run");
  const Left before = left("run");
  set_log_level(LogLevel::info);
  testing::internal::CaptureStderr();
  const TrainOutcome outcome = train(recipe(), {out("run"), "auto", {}, true});
  const std::string log = testing::internal::GetCapturedStderr();
  set_log_level(LogLevel::error);
  EXPECT_EQ(outcome.progress.step, 5);
  EXPECT_EQ(outcome.progress.examples, 30);
  EXPECT_THAT(log, HasSubstr("one update of the saved weights"));
  expect_equal(left("run"), before, "run");
}

TEST_F(Resume, ZeroUpdatesLeaveTheInitialWeights) {
  const Recipe none = recipe({"train.max_steps=0", "evaluate.at_end=true"});
  EXPECT_EQ(train(none, {out("dry"), "auto", {}, true}).progress.step, 0);
  const TrainOutcome outcome = run(none, "run");
  EXPECT_EQ(outcome.progress.step, 0);
  ASSERT_TRUE(outcome.last_score.has_value());
  const Left initial = left("run");
  EXPECT_EQ(initial.step, 0);
  EXPECT_EQ(run(recipe({"train.max_steps=3", "evaluate.at_end=true"}), "run").progress.step, 3);
  EXPECT_FALSE(left("run").files.at("weights.h5") == initial.files.at("weights.h5"));
}

}  // namespace
}  // namespace linnet
