#include "recipes/engine/make_task.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "core/files.h"
#include "data/registry.h"
#include "recipes/engine/classification_task.h"
#include "recipes/engine/language_model_task.h"

namespace linnet {
namespace {

// A task, whether it is for labelled data, and the kind of model that it trains.
struct TaskKind {
  bool labelled;
  std::string_view model;
  std::unique_ptr<Task> (*make)(const Recipe&, const std::shared_ptr<const Tokenizer>&);
  void (*check)(const Recipe&, const Transformer&);
};

constexpr TaskKind kTasks[] = {
    {true, "encoder", make_classification_task, check_classification},
    {false, "decoder", make_language_model_task, check_language_model},
};

const TaskKind& kind_of(const Recipe& recipe) {
  const TaskKind& task =
      *std::find_if(std::begin(kTasks), std::end(kTasks),
                    [labelled = gives_labels(recipe.data)](const TaskKind& kind) {
                      return kind.labelled == labelled;
                    });
  require_usage(task.model == recipe.model.kind, Cause{ErrorCode::conflict, "model.kind"},
                "data of kind ", recipe.data.kind, " needs model.kind ", task.model,
                ", the recipe has ", recipe.model.kind);
  return task;
}

}  // namespace

void require_task(const Recipe& recipe) {
  kind_of(recipe);
}

void check_task(const Recipe& recipe, const Transformer& model) {
  kind_of(recipe).check(recipe, model);
}

std::unique_ptr<Task> make_task(const Recipe& recipe,
                                const std::shared_ptr<const Tokenizer>& tokenizer) {
  const DataConfig& data = recipe.data;
  const bool pattern = data.path.find_first_of("*?") != std::string::npos;
  require(
      data.path.empty() || pattern || exists(data.path),
      Cause{ErrorCode::not_found, "data.path", data.path}, "there are no data at '", data.path,
      "' (data.path); say where they are with data.path=DIR, evaluating with --set data.path=DIR");
  return kind_of(recipe).make(recipe, tokenizer);
}

}  // namespace linnet
