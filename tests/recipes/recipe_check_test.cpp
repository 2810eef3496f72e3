// What a check of a recipe finds without its data: all that a run refuses whatever these are.
#include "recipes/engine/recipe_check.h"

#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using Overrides = std::vector<std::string>;

class RecipeCheck : public test::TinyRun {
 protected:
  // What the check says; a run has to say the same with the place, and make no directory.
  std::string refusal(const Recipe& recipe) const {
    const std::string found = test::causes_of<UsageError>([&] { check_run(recipe); });
    TrainOptions options;
    options.out = out("run");
    const std::string trained = test::causes_of<UsageError>([&] { train(recipe, options); });
    EXPECT_THAT(trained, testing::StartsWith(found + " at "));
    EXPECT_FALSE(exists(out("run")));
    return found;
  }
};

TEST_F(RecipeCheck, RefusesWhatARunOfALanguageModelRefuses) {
  const std::pair<Overrides, const char*> refused[] = {
      {{"optim.schedule={kind: cosine, warmup_steps: 7}"},
       "out_of_range optim.schedule.warmup_steps"},
      {{"optim.schedule={kind: linear}", "train.max_steps=null", "train.max_minutes=1"},
       "missing_key optim.schedule.steps"},
      {{"optim.schedule={warmup_steps: 2, warmup_lr: 1}"}, "out_of_range optim.schedule.warmup_lr"},
      {{"optim.schedule={kind: linear, end_lr: 1}"}, "out_of_range optim.schedule.end_lr"},
      {{"optim.groups=[{pattern: nothing, lr_scale: 0}]"}, "unknown_name optim.groups"},
      {{"train.tokens_per_update=100"}, "conflict train.tokens_per_update"},
      {{"checkpoint.best=accuracy"}, "conflict checkpoint.best"},
      {{"model={kind: encoder, attention: {name: softmax}}"}, "conflict model.kind"},
      {{"evaluate.split=vaildation"}, "unknown_name evaluate.split"},
      {{"model.positions=learned", "evaluate.contexts=[16, 32]"}, "out_of_range evaluate.contexts"},
      {{"model.positions=learned", "model.max_positions=8", "evaluate.every_steps=0"},
       "out_of_range data.context"},
      {{"evaluate.carry_state=true", "model.attention={name: reformer, chunk: 8}"},
       "conflict model.attention"},
      {{"model.attention={name: leapformer, wait: 3}"}, "conflict model.attention.wait"},
      {{"model.attention={name: leapformer, training: expected}"},
       "conflict model.attention.training"},
      {{"model.attention={name: grouped_linear, cross: paired}"}, "conflict model.attention.cross"},
      {{"model.attention={name: abc_cluster, bits: 31}"}, "conflict model.attention.bits"},
      {{"model.attention=[{layers: 0, name: linear}, {layers: 1, name: cosformer, cross_length: "
        "common}]"},
       "conflict model.attention.cross_length"},
      {{"data.train=[]"}, "not_found data.train"},
      {{"data.validation=[]"}, "not_found data.validation"},
      {{"data.test=[]", "evaluate.split=test"}, "not_found data.test"},
      {{"data.lines=stripped"}, "conflict data.lines"},
      {{"data.lines=stripped", "data.tokenizer={kind: word}"}, "conflict data.lines"},
  };
  for (const auto& [changes, cause] : refused) EXPECT_EQ(refusal(recipe(changes)), cause);
}

TEST_F(RecipeCheck, RefusesWhatARunOfAClassifierRefuses) {
  EXPECT_EQ(refusal(classifier({"evaluate.carry_state=true"})), "conflict evaluate.contexts");
  EXPECT_EQ(refusal(classifier({"evaluate.contexts=[8]"})), "conflict evaluate.contexts");
  EXPECT_EQ(refusal(classifier({"model={kind: decoder, attention: {name: softmax}}"})),
            "conflict model.kind");
}

// Defaults that are written down, and what a preset chooses for other forms, are no choice of the
// recipe; nor are they once it is resolved.
TEST_F(RecipeCheck, OptionsWithoutEffectAreThoseThatARecipeChooses) {
  for (const char* attention :
       {"{name: leapformer, wait: 0, training: softmax}", "{name: leapformer, preset: simulst}",
        "{name: grouped_linear, preset: t5}", "{name: grouped_linear, preset: t5, cross: paired}",
        "{name: abc_cluster, slots: 4}"}) {
    const Recipe accepted = recipe({concat("model.attention=", attention)});
    EXPECT_NO_THROW(check_run(accepted)) << attention;
    EXPECT_NO_THROW(check_run(parse_recipe(accepted.resolved))) << attention;
  }
  EXPECT_NO_THROW(check_run(classifier({"model.attention={name: abc_cluster, bits: 31}"})));
  EXPECT_EQ(refusal(classifier({"model.attention={name: leapformer, wait: 3}"})),
            "conflict model.attention.wait");
}

TEST_F(RecipeCheck, AcceptsWhatARunAccepts) {
  for (const Overrides& changes :
       {Overrides{}, Overrides{"optim.schedule={kind: cosine, warmup_steps: 6}"},
        Overrides{"data.lines=stripped", "data.tokenizer={kind: byte, eos: true}"},
        Overrides{"data.test=[]"},
        Overrides{"data.validation=[]", "evaluate={every_steps: 0, at_end: false}"}}) {
    const Recipe accepted = recipe(changes);
    EXPECT_NO_THROW(check_run(accepted));
    EXPECT_NO_THROW(train(accepted, {out("run"), "auto", {}, true}));
  }
}

// Generated examples are a function of the recipe alone.
TEST_F(RecipeCheck, GeneratesTheExamplesThatARecipeDescribes) {
  const std::string path = folder_.write("listops.yaml", to_yaml(classifier().resolved));
  const auto check = [&](const Overrides& changes) {
    return test::causes_of<UsageError>([&] { check_recipe(path, changes); }, folder_.path());
  };
  EXPECT_EQ(check({}), "nothing thrown");
  EXPECT_EQ(check({"data.context=12"}), "nothing thrown");
  EXPECT_EQ(check({"data.context=12", "model.pooling=cls"}),
            "out_of_range data.context at command line: data.context");
  EXPECT_EQ(check({"data.listops.max_length=3", "data.listops.max_depth=2"}),
            "out_of_range data.listops at listops.yaml:10:5");
  EXPECT_EQ(check({"sweep={data.context: [16, 11]}"}),
            "out_of_range data.context at command line: sweep: data.context at point "
            "context=11");
  EXPECT_EQ(check({"optim.schedule={kind: linear, warmup_steps: 8}"}),
            "out_of_range optim.schedule.warmup_steps at command line: optim.schedule");
}

}  // namespace
}  // namespace linnet
