// One update and one evaluation of every mechanism in every task that a paper's table has it for,
// with the recipe's own options in a small model on generated data. Points that are the same recipe
// then, such as a mechanism on GLUE's tasks, run once.
#include <algorithm>
#include <set>

#include "recipes/engine/make_task.h"
#include "tests/recipes/every_recipe.h"
#include "tests/recipes/row_kinds.h"

namespace linnet {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kEvery = 30;  // sanitizers are slow: about eight pairs of all papers
#else
constexpr size_t kEvery = 1;
#endif

class EveryMechanism : public test::RowKinds, public testing::WithParamInterface<const char*> {
 protected:
  // What makes a point small: data, sizes, one update; the form of model and attention stay.
  std::vector<std::string> small(const Recipe& recipe) const {
    const int64_t heads = std::min<int64_t>(recipe.model.heads, 2);
    std::vector<std::string> changes{"seed=1",
                                     concat("model.heads=", heads),
                                     "model.kv_heads=0",
                                     "model.feed_forward_width=64",
                                     "init=null",
                                     "train.max_steps=1",
                                     "train.max_tokens=null",
                                     "train.max_minutes=null",
                                     "train.max_epochs=null",
                                     "train.tokens_per_update=null",
                                     "train.examples_per_update=2",
                                     "train.micro_batch=2",
                                     "evaluate.every_steps=0",
                                     "evaluate.at_end=true",
                                     "evaluate.batch=2",
                                     "evaluate.max_tokens=300",
                                     "evaluate.contexts=[]",
                                     "evaluate.stride=null",
                                     "evaluate.protocols=[]",
                                     "evaluate.at_progress=[]",
                                     "evaluate.best_on=null",
                                     "evaluate.split=validation",
                                     "checkpoint.every_steps=0",
                                     "optim.schedule={kind: constant}",
                                     "generate.tokens=0"};
    if (!recipe.model.cutoffs.empty()) changes.emplace_back("model.cutoffs=[50, 100]");
    // A list of mechanisms names layers.
    if (recipe.resolved.find("model")->find("attention")->is_map()) {
      changes.emplace_back("model.layers=2");
    }
    if (task_kind(recipe) == TaskKind::masked_language_model) {
      changes.push_back(
          concat("data.tokenizer={kind: wordpiece, path: ", folder_ / "vocab.txt", "}"));
    }
    // Mechanisms have sizes that go with the heads' width.
    changes.push_back(concat("model.width=", heads * recipe.model.width / recipe.model.heads));
    const std::string& kind = recipe.data.kind;
    const std::string context = ", context: 128}";
    const TaskKind task = task_kind(recipe);
    if (kind == "lra_retrieval") {
      changes.push_back(concat("data={kind: lra_retrieval, path: ", folder_ / "pairs", context));
    } else if (kind == "listops") {
      changes.push_back(
          "data={kind: listops, listops: {min_length: 20, max_length: 60, max_depth: 4, "
          "train_examples: 8, validation_examples: 4, test_examples: 4}" +
          context);
    } else if (task == TaskKind::classification) {
      changes.push_back(concat("data={kind: tsv, path: ", folder_ / "reviews", context));
    } else {
      changes.push_back(concat("data={kind: text, train: [", folder_ / "long0.txt",
                               "], validation: [", folder_ / "long1.txt", "], test: [",
                               folder_ / "long2.txt", "], cache: false", context));
    }
    return changes;
  }
};

TEST_P(EveryMechanism, OfATableTrainsAndIsScored) {
  pairs();
  texts();
  masked();
  for (uint64_t i = 0; i < 3; ++i) {
    folder_.write(concat("long", i, ".txt"), test::some_text(3000, i));
  }
  std::set<std::string> seen;
  size_t number = 0;
  for (const auto& [path, label, recipe] : test::points_below(concat("recipes/", GetParam()))) {
    if (!recipe.published || !recipe.published->has_rows()) continue;
    SCOPED_TRACE(concat(path, " ", label));
    ConfigNode node = recipe.given;
    std::vector<Override> changes;
    for (const std::string& change : small(recipe)) changes.push_back(parse_override(change));
    apply_overrides(node, std::move(changes));
    for (const char* key : {"name", "description", "published"}) node.erase(key);
    try {
      const Recipe one = parse_recipe(node);
      if (!seen.insert(to_yaml(one.resolved)).second || number++ % kEvery != 0) continue;
      run(one, concat("run", number));
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Papers, EveryMechanism,
                         testing::Values("abc", "lavo", "leapformer", "linearized_llm", "survey"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace linnet
