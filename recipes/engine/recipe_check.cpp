#include "recipes/engine/recipe_check.h"

#include <set>

#include "recipes/engine/given_state.h"
#include "recipes/engine/make_task.h"
#include "recipes/engine/run_sample.h"
#include "recipes/engine/train_step.h"

namespace linnet {
namespace {

// The data determine both; no check depends on them.
constexpr int64_t kSomeVocabulary = 256;
constexpr int64_t kSomeClasses = 10;

}  // namespace

void check_run(const Recipe& recipe) {
  require_task(recipe);
  const bool decoder = recipe.model.kind == "decoder";
  require_usage(recipe.checkpoint.best != "accuracy" || !decoder,
                Cause{ErrorCode::conflict, "checkpoint.best"},
                "checkpoint.best 'accuracy' is for classifiers; a language model has 'nll'");
  const std::unique_ptr<Transformer> model =
      declare_model(recipe, {kSomeVocabulary, recipe.data.context, kSomeClasses});
  require_context(*model, recipe.data.context);
  make_groups(layout_of(model->parameters()), recipe.optim.weight_decay, recipe.optim.groups);
  make_schedule(recipe.optim, recipe.train.max_steps.value_or(0));
  examples_per_update(recipe.train, recipe.data.context);
  check_task(recipe, *model);
  if (decoder) check_sample(recipe);
}

void check_recipe(const std::string& path, const std::vector<std::string>& overrides) {
  std::set<std::string> generated;
  for (const RecipePoint& point : load_recipe_points(path, overrides)) {
    const Recipe recipe = parse_recipe(point.node);
    try {
      check_run(recipe);
      if (recipe.init) load_given_state(recipe);
      // Generated examples are a function of the recipe: they may not be found, or not fit.
      const bool generates = recipe.data.kind == "listops" && recipe.data.path.empty();
      const std::string examples =
          concat(inline_text(*recipe.resolved.find("data")), recipe.model.pooling);
      if (generates && generated.insert(examples).second) make_task(recipe);
    } catch (const UsageError& error) {
      const std::string place = concat(path, point.label.empty() ? "" : " at point ", point.label);
      throw UsageError({error.code(), error.key(), place}, concat(place, ": ", error.what()));
    }
  }
}

}  // namespace linnet
