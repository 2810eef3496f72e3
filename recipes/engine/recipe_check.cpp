#include "recipes/engine/recipe_check.h"

#include <algorithm>
#include <set>
#include <typeinfo>

#include "core/files.h"
#include "recipes/engine/given_state.h"
#include "recipes/engine/make_task.h"
#include "recipes/engine/model_attention.h"
#include "recipes/engine/recipe_place.h"
#include "recipes/engine/row_claims.h"
#include "recipes/engine/run_sample.h"
#include "recipes/engine/run_state.h"
#include "recipes/engine/scoring.h"
#include "recipes/engine/train_step.h"

namespace linnet {
namespace {

// The data determine both; no check depends on them.
constexpr int64_t kSomeVocabulary = 256;
constexpr int64_t kSomeClasses = 10;

// Whether data are missing: nothing is found at a place, or a folder holds none of the files that
// the kind of data reads. A file where a folder is needed, and what cannot be read, is no such
// place.
bool are_missing(const Error& error) {
  if (error.code() != ErrorCode::not_found && error.key() != "data.path") return false;
  return !exists(error.place()) || is_directory(error.place());
}

// The keys of the section task, where it is not what the data are for anyway.
std::string masking_of(const Recipe& recipe) {
  const ConfigNode* task = recipe.resolved.find("task");
  return task == nullptr ? "" : inline_text(*task);
}

// The task of the point before, which most points share: reading data takes long.
class LastTask {
 public:
  // nullptr where the data, or the files of the tokenizer, are not there; then why_not() says so.
  // `place`: the checkpoint whose data the recipe reads, "" for its own.
  const Task* of(const Recipe& recipe, const std::string& place) {
    const std::string data = concat(name_of(task_kind(recipe)), masking_of(recipe),
                                    inline_text(*recipe.resolved.find("data")),
                                    recipe.model.reads_first_token(), recipe.seed, " ", place);
    if (data == data_) return task_.get();
    task_ = nullptr;
    data_ = data;
    try {
      task_ = make_task(recipe);
    } catch (const UsageError&) {
      throw;
    } catch (const Error& error) {
      if (!are_missing(error)) throw;
      why_not_ = error.what();
    }
    return task_.get();
  }
  const std::string& why_not() const { return why_not_; }

 private:
  std::string data_, why_not_;
  std::unique_ptr<Task> task_;
};

void check_point(Recipe recipe, LastTask& tasks, bool without_model) {
  check_run(recipe);
  std::optional<GivenState> given;
  if (recipe.init && !without_model) given = load_given_state(recipe);
  const bool all = given && given->all;
  const auto record = all ? data_record_of(given->checkpoint) : std::nullopt;
  if (record) recipe.data = located(recipe.data, *record);
  const Task* task = tasks.of(recipe, record ? given->checkpoint.path : "");
  if (task == nullptr) return;
  if (all) require_same_data(recipe, *task, given->checkpoint, kWeightsInstead);
  const std::unique_ptr<Transformer> model = declare_model(recipe, task->sizes());
  if (given) require_fitting(*given, recipe, task->tokenizer().get(), model->parameters());
  check_run(recipe, *task, *model);
}

// Begins with the place, and names the point.
template <typename E>
E refusal(const Recipe& recipe, const RecipePoint& point, const std::string& path, const E& error) {
  const std::string at = point.label.empty() ? "" : concat(" at point ", point.label);
  const std::string found = place_in(recipe, error), what = error.what();
  const std::string& own = error.place();
  if (own.empty()) {
    const std::string place = found.empty() ? path : found;
    return {{error.code(), error.key(), place + at}, with_place(place, what, at)};
  }
  const bool named = what.starts_with(own + ": ");
  return {{error.code(), error.key(), own + at},
          named ? concat(own, at, what.substr(own.size())) : concat(path, at, ": ", what)};
}

void require_evaluations(const Recipe& recipe) {
  const EvaluateConfig& evaluate = recipe.evaluate;
  require_usage(evaluate.at_progress.empty() || recipe.train.max_steps || recipe.train.max_epochs,
                Cause{ErrorCode::conflict, "evaluate.at_progress"},
                "evaluate.at_progress is percent of a number of updates, which nothing gives here: "
                "set train.max_steps or train.max_epochs");
  if (!evaluate.best_on) return;
  require_usage(recipe.checkpoint.best != "none", Cause{ErrorCode::conflict, "evaluate.best_on"},
                "evaluate.best_on scores the best checkpoint, and checkpoint.best is none: set "
                "that to the figure which chooses it, or leave best_on out");
  require_usage(evaluate.scores_anything(), Cause{ErrorCode::conflict, "evaluate.best_on"},
                "evaluate.best_on scores the best checkpoint, and no evaluation chooses one: set "
                "evaluate.every_steps, at_progress or at_end");
}

}  // namespace

void check_run(const Recipe& recipe, bool continues) {
  require_task(recipe);
  const bool language_model = task_kind(recipe) == TaskKind::language_model;
  const bool masked = task_kind(recipe) == TaskKind::masked_language_model;
  require_usage(recipe.checkpoint.best != "accuracy" || (!language_model && !masked),
                Cause{ErrorCode::conflict, "checkpoint.best"},
                "checkpoint.best 'accuracy' is for classifiers; a language model has 'nll'");
  require_evaluations(recipe);
  const int64_t classes = task_kind(recipe) == TaskKind::classification ? kSomeClasses : 0;
  const std::vector<int64_t>& cutoffs = recipe.model.cutoffs;
  // As many as the recipe's ids need: how many there are is known with the data.
  const int64_t vocabulary = std::max(
      {kSomeVocabulary, cutoffs.empty() ? 0 : cutoffs.back() + 1, recipe.model.decoder_start + 1});
  const std::unique_ptr<Transformer> model =
      declare_model(recipe, {vocabulary, recipe.data.context, classes});
  require_context(*model, recipe.data.context);
  if (!continues) require_attention_effects(recipe.model);
  make_groups(layout_of(model->parameters()), recipe.optim.weight_decay, recipe.optim.groups);
  make_schedule(recipe.optim, recipe.train.max_steps.value_or(0));
  examples_per_update(recipe.train, recipe.data.context);
  check_task(recipe, *model);
  if (language_model) check_sample(recipe);
}

void check_run(const Recipe& recipe, const Task& task, const Transformer& model) {
  task.check_fits(recipe);
  examples_per_update(recipe.train, task.tokens_per_example());
  task.examples_per_epoch();
  // Reading the splits here also keeps them from being read by two threads.
  for (const ScoreOptions& options : scored_by_run(recipe.evaluate)) {
    check_scoring(task, model, options);
  }
  check_sample(recipe, task);
}

Unread check_recipe(const std::string& path, const std::vector<std::string>& overrides,
                    bool allow_missing_model) {
  LastTask tasks;
  RowClaims claims;
  Unread unread;
  std::set<std::string> read;  // a repeat with another seed needs no reading of data
  for (const RecipePoint& point : load_recipe_points(path, overrides)) {
    const Recipe recipe = parse_recipe(point.node);
    const bool without_model = allow_missing_model && recipe.init && !exists(recipe.init->from);
    if (without_model) unread.model = concat("init.from: there is no '", recipe.init->from, "'");
    try {
      claims.add(recipe, point.label);
      ConfigNode node = recipe.resolved;
      node.erase("seed");
      if (read.insert(inline_text(node)).second) {
        check_point(recipe, tasks, without_model);
      } else {
        check_run(recipe);
      }
    } catch (const UsageError& error) {
      throw refusal(recipe, point, path, error);
    } catch (const Error& error) {
      if (typeid(error) != typeid(Error)) throw;  // another one knows more than its text
      throw refusal(recipe, point, path, error);
    }
  }
  unread.data = tasks.why_not();
  return unread;
}

}  // namespace linnet
