// `init`: new runs that begin with the weights of a checkpoint, or with all that it holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/hash.h"
#include "core/hdf5.h"
#include "recipes/engine/evaluate.h"
#include "recipes/engine/given_state.h"
#include "recipes/engine/recipe_check.h"
#include "recipes/engine/report.h"
#include "recipes/engine/report_data.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::HasSubstr;

class Given : public test::TinyRun {
 protected:
  // The recipe with `changes` that begins from `from`.
  Recipe from(const std::string& from, std::vector<std::string> changes = {}) const {
    changes.push_back("init.from=" + from);
    return recipe(changes);
  }
  std::string step_of(const std::string& name, int64_t step) const {
    return CheckpointStore(out(name)).path_of(step);
  }
  // The refusal of such a run, which leaves no directory. `folder` is left out of places.
  std::string refusal(const std::string& from, const std::vector<std::string>& changes) const {
    const std::string causes = test::causes_of<UsageError>(
        [&] { run(this->from(from, changes), "refused"); }, folder_.path());
    EXPECT_FALSE(exists(out("refused")));
    return causes;
  }
};

const std::vector<std::string> kNoUpdate = {"train.max_steps=0", "evaluate.at_end=true"};

TEST_F(Given, WeightsScoreAsTheirCheckpointDoes) {
  for (const std::string extra :
       {"model.positions=learned", "optim.ema={decay: 0.5}",
        "model.attention={name: performer, features: 8}", "data.tokenizer={kind: word}"}) {
    const std::string name = extra.substr(0, extra.find('='));
    run(recipe({extra}), name);
    const EvaluateReport before = evaluate(out(name), {});
    std::vector<std::string> changes = {extra};
    changes.insert(changes.end(), kNoUpdate.begin(), kNoUpdate.end());
    // Not even with another seed are values drawn.
    changes.emplace_back("seed=99");
    const TrainOutcome begun = run(from(before.checkpoint, changes), name + "-begun");
    ASSERT_TRUE(begun.last_score.has_value());
    EXPECT_EQ(begun.progress.step, 0);
    EXPECT_EQ(begun.last_score->nll(), before.scores[0].nll()) << extra;
    EXPECT_EQ(evaluate(out(name + "-begun"), {}).scores[0].nll(), before.scores[0].nll()) << extra;
  }
}

TEST_F(Given, WeightsOfAClassifierScoreAsTheirCheckpointDoes) {
  run(classifier(), "run");
  std::vector<std::string> changes = kNoUpdate;
  changes.push_back("init.from=" + step_of("run", 7));
  const TrainOutcome begun = run(classifier(changes), "begun");
  EXPECT_EQ(begun.last_score->nll(), evaluate(step_of("run", 7), {}).scores[0].nll());
}

TEST_F(Given, WeightsAloneBeginANewRun) {
  run(recipe(), "run");
  const TrainOutcome outcome =
      run(from(step_of("run", 4), {"optim={kind: sgd, lr: 0.1}", "train.max_steps=3"}), "begun");
  EXPECT_EQ(outcome.progress.step, 3);
  EXPECT_EQ(outcome.progress.examples, 18);
  EXPECT_EQ(CheckpointStore(out("begun")).steps().front(), 0) << "the given weights are saved";
  EXPECT_EQ(load_checkpoint(step_of("begun", 0)).files.at("weights.h5"),
            load_checkpoint(step_of("run", 4)).files.at("weights.h5"));
}

TEST_F(Given, AllGoesOnBitForBit) {
  const std::vector<std::vector<std::string>> variants = {
      {}, {"optim.ema={decay: 0.8, warmup: true}", "model.dropout=0.2"}, {"train.precision=bf16"}};
  for (size_t i = 0; i < variants.size(); ++i) {
    const std::string name = concat("run-", i);
    run(recipe(variants[i]), name);
    std::vector<std::string> changes = variants[i];
    changes.emplace_back("init.state=all");
    run(from(step_of(name, 4), changes), name + "-begun");
    const Left straight = left(name), begun = left(name + "-begun");
    EXPECT_EQ(begun.step, 7);
    EXPECT_EQ(begun.best_step, straight.best_step);
    ASSERT_EQ(begun.files.size(), straight.files.size());
    for (const auto& [file, bytes] : straight.files) {
      EXPECT_TRUE(bytes == begun.files.at(file)) << name << ": " << file;
    }
    // Lines after step 4: three updates, the evaluation of step 6.
    ASSERT_EQ(begun.metrics.size(), 4U);
    EXPECT_TRUE(std::equal(begun.metrics.begin(), begun.metrics.end(), straight.metrics.end() - 4));
  }
}

// The run says where it began; only another beginning is another recipe.
TEST_F(Given, GoingOnDoesNotNeedWhatItBeganFrom) {
  run(recipe(), "run");
  run(from(step_of("run", 4), {"train.max_steps=3"}), "begun");
  const TrainOutcome outcome = run(recipe({"train.max_steps=5"}), "begun");
  EXPECT_EQ(outcome.progress.step, 5);
  for (const std::string& file :
       {out("begun") + "/recipe.yaml", step_of("begun", 5) + "/recipe.yaml"}) {
    EXPECT_THAT(read_file(file), HasSubstr(step_of("run", 4)));
  }
  EXPECT_THAT(read_file(out("begun") + "/environment.json"), HasSubstr("\"init\""));
  EXPECT_EQ(
      test::causes_of<UsageError>([&] { run(from(step_of("run", 7)), "begun"); }, folder_.path()),
      "conflict init.from at begun/checkpoints/step-00000005");
  EXPECT_EQ(
      test::causes_of<UsageError>([&] { run(from(step_of("run", 4)), "run"); }, folder_.path()),
      "conflict init at run/checkpoints/step-00000007");
}

TEST_F(Given, AllGoesOnWithAnotherRate) {
  run(recipe({"train.max_steps=4"}), "run");
  const TrainOutcome outcome =
      run(from(out("run"), {"init.state=all", "optim.lr=0.001", "optim.clip_norm=0.5"}), "begun");
  EXPECT_EQ(outcome.progress.step, 7);
  EXPECT_EQ(outcome.progress.examples, 42);
}

// An update of 96 tokens is one of 6 examples of 16.
TEST_F(Given, AllGoesOnWithAnUpdateOfTheSameSizeSaidInAnotherWay) {
  const auto examples = [](int64_t count) -> std::vector<std::string> {
    return {"init.state=all", "train.tokens_per_update=null",
            concat("train.examples_per_update=", count)};
  };
  run(recipe(), "run");
  run(from(step_of("run", 4), examples(6)), "begun");
  EXPECT_EQ(left("begun").files.at("weights.h5"), left("run").files.at("weights.h5"));
  EXPECT_EQ(refusal(step_of("run", 4), examples(7)),
            "conflict train.examples_per_update at run/checkpoints/step-00000004");
}

TEST_F(Given, AllNeedsTheSameOptimizerAndData) {
  run(recipe(), "run");
  const std::string place = "run/checkpoints/step-00000004";
  const auto refused = [&](std::vector<std::string> changes) {
    changes.emplace_back("init.state=all");
    return refusal(step_of("run", 4), changes);
  };
  EXPECT_EQ(refused({"optim={kind: sgd, lr: 0.1}"}), "conflict optim.kind at " + place);
  EXPECT_EQ(refused({"optim.betas=[0.8, 0.9]"}), "conflict optim.betas at " + place);
  EXPECT_EQ(refused({"optim.ema={decay: 0.5}"}), "conflict optim.ema at " + place);
  EXPECT_EQ(refused({"data.cross_documents=true"}), "conflict data.cross_documents at " + place);
  EXPECT_EQ(refused({"data.context=8"}), "conflict data.context at " + place);
  EXPECT_EQ(refused({"seed=6"}), "conflict seed at " + place);
  EXPECT_EQ(refused({"train.tokens_per_update=192"}),
            "conflict train.tokens_per_update at " + place);
  folder_.write("train0.txt", test::some_text(150, 77));
  EXPECT_EQ(refused({}), "conflict data at run");
}

TEST_F(Given, ParametersThatDifferAreNamedWithBothShapes) {
  run(recipe(), "run");
  const std::string checkpoint = step_of("run", 4), place = " at run/checkpoints/step-00000004";
  EXPECT_EQ(refusal(checkpoint, {"model.width=16"}),
            "conflict embedding.weight" + place + "\nconflict layers.0.attention.q.weight" + place +
                "\nconflict layers.0.attention.k.weight" + place);
  EXPECT_EQ(refusal(checkpoint, {"model.layers=1"}).substr(0, 42),
            "unknown_name layers.1.attention.k.bias" + place.substr(0, 4));
  EXPECT_EQ(refusal(checkpoint, {"model.positions=learned", "model.norm=rms"}),
            "not_found positions.weight" + place + "\nunknown_name final_norm.bias" + place +
                "\nunknown_name layers.0.attention_norm.bias" + place +
                "\nunknown_name layers.0.feed_forward_norm.bias" + place);
  const std::string message =
      test::message_of([&] { run(from(checkpoint, {"model.width=16"}), "refused"); });
  for (const char* part :
       {"'model.width'", "embedding.weight is f32 [256, 8] there and f32 [256, 16] here",
        " more"}) {
    EXPECT_THAT(message, HasSubstr(part));
  }
  EXPECT_THAT(message, testing::Not(HasSubstr("\n")));
  // Positions beyond the table, classes beside tokens.
  run(recipe({"model.positions=learned"}), "learned");
  EXPECT_EQ(refusal(step_of("learned", 4), {"model.positions=learned", "data.context=8"}),
            "conflict positions.weight at learned/checkpoints/step-00000004");
  run(classifier(), "classes");
  EXPECT_THAT(refusal(out("classes"), {}), HasSubstr("conflict embedding.weight"));
}

// A trained output table is not lost to a model that is tied, nor is a tied one's begun afresh.
TEST_F(Given, LanguageModelsAreTiedBothOrNeither) {
  run(recipe({"model.tie_embeddings=false"}), "untied");
  run(recipe(), "tied");
  EXPECT_THAT(refusal(step_of("untied", 7), {}), testing::StartsWith("unknown_name output.weight"));
  EXPECT_THAT(refusal(step_of("tied", 7), {"model.tie_embeddings=false"}),
              testing::StartsWith("not_found output.weight"));
}

TEST_F(Given, AnotherTokenizerIsRefused) {
  const std::vector<std::string> words = {"data.tokenizer={kind: word}"};
  run(recipe(words), "run");
  const std::string place = "conflict data.tokenizer at run/checkpoints/step-00000004";
  EXPECT_EQ(refusal(step_of("run", 4), {}), place);
  // As many words, of which one is another.
  std::string vocabulary = read_file(join_path(out("run"), "vocabulary.txt"));
  const size_t at = vocabulary.find("ship");
  ASSERT_NE(at, std::string::npos);
  vocabulary.replace(at, 4, "boat");
  const std::string other = folder_.write("other.txt", vocabulary);
  EXPECT_EQ(refusal(step_of("run", 4), {"data.tokenizer={kind: word, path: " + other + "}"}),
            place);
  // Other text with its vocabulary.
  const std::string own = join_path(out("run"), "vocabulary.txt");
  folder_.write("more.txt", test::some_text(2000, 55) + " unheard ");
  run(from(step_of("run", 4), {"data.tokenizer={kind: word, path: " + own + "}",
                               "data.train=[" + folder_ / "more.txt" + "]"}),
      "begun");
  EXPECT_EQ(left("begun").step, 7);
}

TEST_F(Given, OtherPlacesAreRefusedByTheirKey) {
  EXPECT_EQ(refusal(out("none"), {}), "not_found init.from at none");
  EXPECT_EQ(test::causes_of<UsageError>([&] { recipe({"init={from: ''}"}); }),
            "out_of_range init.from at command line: init");
  EXPECT_EQ(test::causes_of<UsageError>([&] { recipe({"init={map: linnet}"}); }),
            "missing_key init.from at command line: init");
  EXPECT_EQ(test::causes_of<UsageError>([&] { recipe({"init={from: x, map: torch}"}); }),
            "unknown_name init.map at command line: init");
  EXPECT_EQ(test::causes_of<UsageError>([&] { recipe({"init={from: x, state: optimizer}"}); }),
            "unknown_name init.state at command line: init");
  run(recipe({"train.max_steps=2"}), "run");
  write_file(join_path(step_of("run", 2), "weights.h5"), "damaged");
  EXPECT_EQ(test::causes_of([&] { run(from(step_of("run", 2)), "refused"); }),
            "malformed at " + join_path(step_of("run", 2), "weights.h5"));
}

TEST_F(Given, ACheckOfTheRecipeFindsWhatIsRefused) {
  run(recipe({"train.max_steps=2"}), "run");
  const auto checked = [&](const Recipe& recipe) {
    const std::string path = folder_.write("checked.yaml", to_yaml(recipe.resolved));
    return test::causes_of<UsageError>([&] { check_recipe(path); }, folder_.path());
  };
  EXPECT_EQ(checked(from(out("none"))), "not_found init.from at none");
  EXPECT_EQ(checked(from(out("run"), {"init.state=all", "seed=6"})),
            "conflict seed at run/checkpoints/step-00000002");
  EXPECT_EQ(checked(from(out("run"))), "nothing thrown");
  EXPECT_EQ(checked(from(out("run"), {"init.state=all"})), "nothing thrown");
  EXPECT_THAT(checked(from(out("run"), {"model.width=16"})),
              HasSubstr("conflict embedding.weight at run/checkpoints/step-00000002"));
  // It allocates nothing: the device of the run may have more memory than this machine.
  const Recipe large = from(out("run"), {"model.width=65536", "model.layers=1000"});
  EXPECT_THAT(checked(large), HasSubstr("conflict embedding.weight at run/checkpoints/"));
  folder_.write("train0.txt", test::some_text(150, 77));
  EXPECT_EQ(checked(from(out("run"), {"init.state=all"})), "conflict data at run");
  EXPECT_EQ(checked(from(out("run"))), "nothing thrown");
}

TEST_F(Given, OfARunTheBestCheckpointIsTakenElseTheNewest) {
  run(recipe(), "run");
  CheckpointStore(out("run")).mark_best(2, "nll", 0.1);
  const std::string best = log_of([&] { run(from(out("run")), "of-best"); });
  EXPECT_THAT(best, HasSubstr("step-00000002 (step 2, weights only), the best checkpoint of "));
  write_file(join_path(step_of("run", 2), "weights.h5"), "damaged");
  const std::string next = log_of([&] { run(from(out("run")), "of-next"); });
  EXPECT_THAT(next, HasSubstr("the best checkpoint is skipped: " + step_of("run", 2)));
  EXPECT_THAT(next, HasSubstr("weights only), the best intact checkpoint of "));
  run(recipe({"checkpoint.best=none"}), "unnamed");
  const std::string newest = log_of([&] { run(from(out("unnamed")), "of-newest"); });
  EXPECT_THAT(newest, HasSubstr("step-00000007 (step 7, weights only), the newest checkpoint of "));
  const std::string named = log_of([&] { run(from(step_of("run", 4)), "of-named"); });
  EXPECT_THAT(named, HasSubstr("step-00000004 (step 4, weights only)\n"));
}

TEST_F(Given, TheRunSaysWhatItBeganFromAndDoesNotNeedItAgain) {
  run(recipe({"train.max_steps=4"}), "given");
  const std::string checkpoint = step_of("given", 4);
  const std::string hash = hash128_hex(read_file(join_path(checkpoint, "weights.h5")));
  const Recipe whole = from(checkpoint);
  run(whole, "straight");
  const Recipe part = from(checkpoint, {"train.max_steps=3"});
  run(part, "run");
  remove_all(out("given"));
  run(whole, "run");
  expect_equal(left("run"), left("straight"), "without what it began from");
  for (const std::string name : {"straight", "run"}) {
    const std::string path = join_path(out(name), "environment.json");
    const Origin origin = origin_from(parse_json(read_file(path), path).at("init"));
    EXPECT_EQ(origin.path, checkpoint);
    EXPECT_EQ(origin.step, 4);
    EXPECT_EQ(origin.hash, hash);
    EXPECT_THAT(read_file(join_path(out(name), "recipe.yaml")), HasSubstr("from: " + checkpoint));
    const RunData data = read_run(out(name));
    EXPECT_EQ(data.origin, checkpoint + " (step 4, weights only)");
    EXPECT_THAT(report_html({data}), HasSubstr("began from " + data.origin));
  }
  // It is no run that began elsewhere.
  EXPECT_EQ(test::causes_of<UsageError>([&] { run(from("elsewhere"), "run"); }, out("run")),
            "conflict init.from at checkpoints/step-00000007");
}

// Whether a first stage kept its protocol: what leaves it has no section `published`.
TEST_F(Given, ARunSaysWhetherItsFirstStageWasOfATable) {
  const std::string row = "published={table: leapformer T9, task: lra_listops, model: S4D}";
  const std::string stage = "published={split: validation}";
  run(recipe({stage, "train.max_steps=1"}), "whole");
  run(recipe({"train.max_steps=1"}), "cut");
  const auto kept = [&](const std::string& name) {
    const std::string path = join_path(out(name), "environment.json");
    const bool published = origin_from(parse_json(read_file(path), path).at("init")).published;
    EXPECT_EQ(read_run(out(name)).other_first_stage, !published) << name;
    return published;
  };
  const std::string whole = log_of([&] { run(from(out("whole"), {row}), "of-whole"); });
  EXPECT_TRUE(kept("of-whole"));
  EXPECT_THAT(whole, testing::Not(HasSubstr("no figure of this run")));
  const std::string cut = log_of([&] { run(from(out("cut"), {row}), "of-cut"); });
  EXPECT_FALSE(kept("of-cut"));
  EXPECT_THAT(cut, HasSubstr("reports show no figure of this run beside the paper's"));
  // A stage between does not hide it, nor does going on.
  run(from(out("cut"), {stage, "train.max_steps=1"}), "between");
  run(from(out("between"), {row}), "last");
  EXPECT_FALSE(kept("last"));
  run(from(out("between"), {row, "train.max_steps=8"}), "last");
  EXPECT_FALSE(kept("last"));
}

TEST_F(Given, ADryRunTakesThemOverAndWritesNothing) {
  run(recipe({"train.max_steps=4"}), "run");
  const TrainOutcome outcome =
      train(from(out("run"), {"init.state=all"}), {out("dry"), "auto", {}, true});
  EXPECT_EQ(outcome.progress.step, 5);
  EXPECT_FALSE(exists(out("dry")));
}

}  // namespace
}  // namespace linnet
