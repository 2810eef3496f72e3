// Updates that are not finite: which layer is named, and which checkpoint is kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "autograd/arithmetic.h"
#include "recipes/engine/make_task.h"
#include "recipes/engine/saving.h"
#include "recipes/engine/soundness.h"
#include "recipes/engine/stopping.h"
#include "recipes/engine/train_step.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// When the attention of a layer, or its gradient, is NaN.
struct Poison {
  int64_t layer = 0;
  uint64_t first = 0, last = UINT64_MAX;  // updates, from 0
  bool evaluation = false;                // in evaluations instead
  bool gradient = false;
  int64_t example = -1;  // in micro-batches that hold it; -1: in all
  bool acts(const MixerContext& context) const {
    if (evaluation || !context.training) return evaluation && !context.training;
    if (context.random.step < first || context.random.step > last) return false;
    const std::vector<int64_t> examples = context.place.examples.to_vector<int64_t>();
    return example < 0 || std::count(examples.begin(), examples.end(), example) > 0;
  }
};

class PoisonedMixer final : public TokenMixer {
 public:
  PoisonedMixer(std::unique_ptr<TokenMixer> inner, const Poison& poison)
      : inner_(std::move(inner)), poison_(poison) {}
  MixerResult forward(const Variable& x, const MixerContext& context,
                      const MixerState& state) const override {
    MixerResult result = inner_->forward(x, context, state);
    if (!poison_.acts(context)) return result;
    if (poison_.gradient) {
      result.y = record("poison", result.y.value(), {result.y}, [](Gradients& gradients) {
        const Tensor& dy = gradients.output();
        gradients.add(0, Tensor::full(dy.shape(), kNaN, dy.dtype()));
      });
    } else {
      result.y = scale(result.y, kNaN);
    }
    return result;
  }
  MixerResult forward_cross(const Variable& x, const Variable& source, const MixerContext& context,
                            const MixerState& state) const override {
    return inner_->forward_cross(x, source, context, state);
  }
  MixerCost cost(const MixerShape& shape) const override { return inner_->cost(shape); }

 private:
  std::unique_ptr<TokenMixer> inner_;
  Poison poison_;
};

Recipe poisoned(Recipe recipe, const Poison& poison) {
  recipe.mixer = [inner = recipe.mixer, poison](const MixerOptions& options,
                                                const MixerScope& scope) {
    std::unique_ptr<TokenMixer> mixer = inner(options, scope);
    if (options.layer != poison.layer) return mixer;
    return std::unique_ptr<TokenMixer>(std::make_unique<PoisonedMixer>(std::move(mixer), poison));
  };
  return recipe;
}

class Divergence : public test::TinyRun {
 protected:
  // Saves every second update and keeps one checkpoint.
  Recipe saving(const Poison& poison, int64_t steps, std::vector<std::string> changes = {}) const {
    changes.insert(changes.end(),
                   {concat("train.max_steps=", steps), "train.max_nonfinite_steps=1000",
                    "checkpoint={every_steps: 2, keep: 1, best: none}"});
    return poisoned(recipe(changes), poison);
  }
  std::vector<int64_t> kept(const std::string& name) const {
    return CheckpointStore(out(name)).steps();
  }
  // What one update of the recipe's model, changed by `change`, says about itself.
  static UpdateResult update(const Recipe& recipe,
                             const std::function<void(const ParameterSet&)>& change) {
    const std::unique_ptr<Task> task = make_task(recipe);
    const std::unique_ptr<Transformer> model = build_model(recipe, task->sizes());
    change(model->parameters());
    model->parameters().refresh_values();
    Updater updater = make_updater(recipe, model->parameters());
    TrainStep step(recipe, *task, *model, updater);
    Progress progress;
    int64_t next = 0;
    const int64_t rows = recipe.train.micro_batch;
    return step.run(progress, [&] { return task->train_batch(rows * next++, rows); });
  }
  static UpdateResult update(const Recipe& recipe) {
    return update(recipe, [](const ParameterSet&) {});
  }
};

const std::vector<std::string> kUnvalidated = {"evaluate.every_steps=0"};

TEST_F(Divergence, TheSoundCheckpointOutlastsAllThatFollow) {
  run(saving({.first = 7}, 20, kUnvalidated), "run");
  EXPECT_THAT(kept("run"), ElementsAre(6, 20));
  EXPECT_EQ(find_checkpoint(out("run")), CheckpointStore(out("run")).path_of(6));
  // The checkpoint of step 7 holds the weights that failed.
  run(saving({.first = 7}, 20, {"evaluate.every_steps=0", "checkpoint.every_steps=1"}), "often");
  EXPECT_THAT(kept("often"), ElementsAre(6, 20));
  // None but the first one was saved before.
  run(saving({.first = 3}, 20, {"evaluate.every_steps=0", "checkpoint.every_steps=3"}), "early");
  EXPECT_THAT(kept("early"), ElementsAre(3, 20));
}

TEST_F(Divergence, WithoutSkippedUpdatesNothingElseIsKept) {
  run(saving({.first = 1000}, 9, kUnvalidated), "run");
  EXPECT_THAT(kept("run"), ElementsAre(8, 9)) << "no update was made from the last one";
  run(saving({.first = 1000}, 9, {"evaluate={every_steps: 3, at_end: true}"}), "validated");
  EXPECT_THAT(kept("validated"), ElementsAre(9));
}

TEST_F(Divergence, AFiniteValidationEndsTheProtection) {
  const Poison two{.first = 7, .last = 8};
  run(saving(two, 20, {"evaluate.every_steps=5"}), "run");
  EXPECT_THAT(kept("run"), ElementsAre(20));
  run(saving(two, 19, {"evaluate.every_steps=20"}), "later");
  EXPECT_THAT(kept("later"), ElementsAre(6, 19));
  // Not one while updates are skipped: the evaluation of step 10 is finite.
  run(saving({.first = 7, .last = 12}, 14, {"evaluate.every_steps=5"}), "still");
  EXPECT_THAT(kept("still"), ElementsAre(6, 14));
}

TEST_F(Divergence, AnotherValidationThatIsNotFiniteEndsNothing) {
  Recipe recipe = saving({.first = 7, .last = 8}, 20, {"evaluate.every_steps=5"});
  run(poisoned(recipe, {.layer = 1, .evaluation = true}), "run");
  EXPECT_THAT(kept("run"), ElementsAre(4, 20)) << "the validation of step 5 is the first";
}

TEST_F(Divergence, WithoutValidationsAHundredFiniteUpdatesEndIt) {
  const Poison one{.first = 7, .last = 7};
  run(saving(one, 107, kUnvalidated), "run");
  EXPECT_THAT(kept("run"), ElementsAre(6, 107));
  run(saving(one, 110, kUnvalidated), "run");
  EXPECT_THAT(kept("run"), ElementsAre(108, 110));
}

// A rate of 100 leaves weights that are finite and worth nothing.
TEST_F(Divergence, RuinedWeightsAreNotSound) {
  run(saving({.first = 1000}, 6, kUnvalidated), "before");
  const std::string from = CheckpointStore(out("before")).path_of(6);
  const auto ruined = [&](const std::string& name, int64_t every) {
    const TrainOutcome outcome =
        train(recipe({"init={state: all, from: " + from + "}", "optim.lr=100", "train.max_steps=20",
                      "checkpoint.every_steps=2", "checkpoint.keep=1",
                      concat("evaluate.every_steps=", every)}),
              {out(name), "auto", {}, false});
    EXPECT_EQ(outcome.progress.skipped, 0) << "all of it is finite";
    EXPECT_THAT(kept(name), ElementsAre(6, 20)) << name;
    set_log_level(LogLevel::warning);
    testing::internal::CaptureStderr();
    EXPECT_EQ(find_checkpoint(out(name)), CheckpointStore(out(name)).path_of(6)) << name;
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("known to be sound"));
    EXPECT_FALSE(CheckpointStore(out(name)).best().has_value());
  };
  ruined("unvalidated", 0);
  ruined("validated", 5);
}

TEST_F(Divergence, LossesSayWhetherWeightsAreRuined) {
  EXPECT_TRUE(is_sound_loss(9.1, 256)) << "a fresh model with tied tables";
  EXPECT_TRUE(is_sound_loss(9.9, 2));
  for (const double loss : {22.3, 1e10, kNaN, std::numeric_limits<double>::infinity()}) {
    EXPECT_FALSE(is_sound_loss(loss, 256)) << loss;
  }
  Recipe recipe = this->recipe({"evaluate.every_steps=1"});
  const std::unique_ptr<Task> task = make_task(recipe);
  const std::unique_ptr<Transformer> model = build_model(recipe, task->sizes());
  Updater updater = make_updater(recipe, model->parameters());
  RunSaver saver({recipe, *task, *model, updater}, out("run"), "id", std::nullopt);
  Progress progress;
  const auto updated = [&](double loss) {
    UpdateResult result;
    result.loss = loss;
    saver.judge_update(result, progress);
    return progress.sound.doubt;
  };
  const auto validated = [&](double loss) {
    progress.evaluated.nll = loss;
    saver.judge_evaluation(progress);
    return progress.sound.doubt;
  };
  EXPECT_FALSE(updated(1e10)) << "nothing was sound before";
  EXPECT_FALSE(validated(1e10));
  progress.sound.step = 6;
  EXPECT_FALSE(updated(3));
  EXPECT_TRUE(updated(1e10));
  EXPECT_TRUE(updated(3)) << "a validation decides";
  EXPECT_TRUE(validated(1e10));
  EXPECT_FALSE(validated(3));
  EXPECT_TRUE(validated(1e10));
  EXPECT_TRUE(validated(kNaN));
  EXPECT_FALSE(validated(3));
  EXPECT_EQ(progress.sound.step, 6);
}

TEST_F(Divergence, TheProtectionSurvivesStopsAndCrashes) {
  const Poison poison{.first = 7, .last = 12};
  const auto sound = [&](const std::string& name, int64_t step) {
    const Checkpoint saved = load_checkpoint(CheckpointStore(out(name)).path_of(step));
    return saved.metadata.at("sound").dump();
  };
  run(saving(poison, 16, kUnvalidated), "straight");
  for (const int64_t cut : {6, 8, 10, 14}) {
    const std::string name = concat("cut-", cut);
    run(saving(poison, cut, kUnvalidated), name);
    run(saving(poison, 16, kUnvalidated), name);
    EXPECT_THAT(kept(name), ElementsAre(6, 16)) << name;
    EXPECT_EQ(sound(name, 16), sound("straight", 16)) << name;
    expect_equal(left(name), left("straight"), name);
  }
  // As if the process had died before it saved step 12.
  const auto changes = std::vector<std::string>{"evaluate.every_steps=0", "checkpoint.keep=2"};
  run(saving(poison, 12, changes), "crashed");
  EXPECT_THAT(kept("crashed"), ElementsAre(6, 10, 12));
  remove_all(CheckpointStore(out("crashed")).path_of(12));
  run(saving(poison, 16, kUnvalidated), "crashed");
  EXPECT_THAT(kept("crashed"), ElementsAre(6, 16));
  expect_equal(left("crashed"), left("straight"), "crashed");
}

TEST_F(Divergence, TheWarningNamesTheLayerAndTheWayBack) {
  const std::vector<std::string> changes = {"evaluate.every_steps=0", "model.layers=3"};
  for (const int64_t layer : {0, 1, 2}) {
    for (const bool gradient : {false, true}) {
      const std::string name = concat("run-", layer, gradient);
      Recipe recipe = saving({.layer = layer, .first = 3, .gradient = gradient}, 20, changes);
      recipe.train.max_nonfinite_steps = 3;
      set_log_level(LogLevel::warning);
      testing::internal::CaptureStderr();
      const std::string error = test::message_of([&] { run(recipe, name); });
      const std::string log = testing::internal::GetCapturedStderr();
      const std::string place =
          concat(gradient ? "the gradient of " : "the output of ", "layers.", layer, ".attention");
      const std::string back = concat("--from ", CheckpointStore(out(name)).path_of(2), " --out ",
                                      out(name), "-again optim.lr=0.005");
      for (const std::string& text : {log, error}) {
        EXPECT_THAT(text, HasSubstr(place));
        EXPECT_THAT(text, HasSubstr(back));
      }
      EXPECT_EQ(log.find(back), log.rfind(back)) << "once is enough";
      EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 3);
      EXPECT_THAT(error, Not(HasSubstr("\n")));
      EXPECT_THAT(kept(name), ElementsAre(2, 4)) << "it ended before step 6 was saved";
    }
  }
}

TEST_F(Divergence, TheWayBackCanBePasted) {
  UpdateResult result;
  result.skipped = true;
  EXPECT_THAT(skipped_update({}, result, "it's mine/checkpoints/step-00000002", 0.01),
              HasSubstr(R"(--from 'it'\''s mine/checkpoints/step-00000002' --out )"
                        R"('it'\''s mine-again' optim.lr=0.005)"));
}

TEST_F(Divergence, EveryParameterThatIsNotFiniteIsNamed) {
  for (const Recipe& recipe : {this->recipe(), classifier()}) {
    const std::unique_ptr<Transformer> model = build_model(recipe, make_task(recipe)->sizes());
    for (const auto& entry : model->parameters().entries()) {
      for (const double value : {kNaN, std::numeric_limits<double>::infinity()}) {
        const UpdateResult result = update(recipe, [&](const ParameterSet& parameters) {
          parameters.weight_of(parameters.find(entry.name)).fill(value);
        });
        EXPECT_TRUE(result.skipped) << entry.name;
        EXPECT_EQ(result.non_finite_origin, concat("the weights of ", entry.name));
      }
    }
  }
}

TEST_F(Divergence, EveryLayerWhoseOutputOverflowsIsNamed) {
  for (const bool recompute : {false, true}) {
    const Recipe recipe = this->recipe({concat("train.recompute=", recompute ? "block" : "none"),
                                        "train.micro_batch=4", "model.layers=3"});
    for (const int64_t layer : {0, 1, 2}) {
      for (const std::string part : {"attention", "feed_forward"}) {
        const std::string name = concat("layers.", layer, ".", part);
        const UpdateResult result = update(recipe, [&](const ParameterSet& parameters) {
          parameters.weight_of(parameters.find(name + ".out.weight")).fill(3e38);
        });
        EXPECT_TRUE(result.skipped) << name;
        EXPECT_EQ(result.non_finite_origin, concat("the output of ", name));
      }
    }
  }
}

TEST_F(Divergence, EveryMicroBatchIsLookedAt) {
  const Recipe recipe = this->recipe({"train.micro_batch=4"});
  for (const int64_t at : {0, 5}) {
    const int64_t example = make_task(recipe)->train_batch(at, 1).example_ids[0];
    const UpdateResult result = update(poisoned(recipe, {.layer = 1, .example = example}));
    EXPECT_TRUE(result.skipped) << at;
    EXPECT_EQ(result.non_finite_origin, "the output of layers.1.attention") << at;
  }
}

TEST_F(Divergence, AFiniteUpdateNamesNothing) {
  const UpdateResult result = update(recipe());
  EXPECT_FALSE(result.skipped);
  EXPECT_EQ(result.non_finite_origin, "");
}

}  // namespace
}  // namespace linnet
