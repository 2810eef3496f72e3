#include "recipes/engine/make_task.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "core/files.h"
#include "data/registry.h"
#include "layers/models.h"
#include "recipes/engine/classification_task.h"
#include "recipes/engine/language_model_task.h"
#include "recipes/engine/masked_language_model_task.h"
#include "recipes/engine/token_prediction_task.h"

namespace linnet {
namespace {

// A task, and the data and the attention that it needs.
struct TaskEntry {
  TaskKind kind;
  DataForm data;
  bool causal;  // needs a model that sees no later tokens
  std::unique_ptr<Task> (*make)(const Recipe&, const std::shared_ptr<const Tokenizer>&);
  void (*check)(const Recipe&, const Transformer&);
};

constexpr TaskEntry kTasks[] = {
    {TaskKind::language_model, DataForm::texts, true, make_language_model_task,
     check_language_model},
    {TaskKind::masked_language_model, DataForm::texts, false, make_masked_language_model_task,
     check_masked_language_model},
    {TaskKind::classification, DataForm::labels, false, make_classification_task,
     check_classification},
    {TaskKind::token_prediction, DataForm::sequences, true, make_token_prediction_task,
     check_token_prediction},
};

// "texts", for messages.
std::string_view text_of(DataForm data) {
  switch (data) {
    case DataForm::texts:
      return "texts";
    case DataForm::labels:
      return "labelled examples";
    case DataForm::sequences:
      break;
  }
  return "generated sequences";
}

// Throws UsageError where task, data and model do not fit.
const TaskEntry& entry_of(const Recipe& recipe) {
  const TaskKind kind = task_kind(recipe);
  const TaskEntry& task =
      *std::find_if(std::begin(kTasks), std::end(kTasks),
                    [kind](const TaskEntry& entry) { return entry.kind == kind; });
  const std::string_view name = name_of(kind);
  const std::string& data = recipe.data.kind;
  require_usage(task.data == form_of(recipe.data), Cause{ErrorCode::conflict, "task.kind"},
                "task.kind ", name, " needs ", text_of(task.data), ", and data.kind ", data,
                " gives ", text_of(form_of(recipe.data)), ": leave task out, which makes it ",
                name_of(default_task(recipe.data)), ", or name other data in data.kind");
  // An encoder and a decoder are named together with their head, which classifies else.
  const bool of_pairs = kind == TaskKind::token_prediction && kind_has_encoder(recipe.model.kind) &&
                        recipe.model.head == "table";
  require_usage(!task.causal || recipe.model.kind == "decoder" || of_pairs,
                Cause{ErrorCode::conflict, "model.kind"}, "task.kind ", name, ", as data.kind ",
                data, " has it, needs model.kind decoder, and the recipe has ", recipe.model.kind,
                ": set model.kind=decoder, or name other data in data.kind");
  const bool noncausal = form_of_kind(recipe.model.kind) == Form::noncausal;
  require_usage(
      kind != TaskKind::masked_language_model ||
          (noncausal && recipe.model.head != "auto" && recipe.model.head != "adaptive"),
      Cause{ErrorCode::conflict, noncausal ? "model.head" : "model.kind"}, "task.kind ", name,
      " needs a model that sees the tokens on both sides of a masked one and has a head for "
      "tokens: "
      "set model.kind=encoder and model.head=masked_lm");
  // A causal classifier is meant where its head is named: kind decoder is the default.
  require_usage(kind != TaskKind::classification || recipe.model.kind != "decoder" ||
                    recipe.model.head != "auto",
                Cause{ErrorCode::conflict, "model.kind"}, "task.kind ", name, ", as data.kind ",
                data, " has it, needs model.kind encoder, and the recipe has ", recipe.model.kind,
                ": set model.kind=encoder, or model.head=last_token to classify by the last token "
                "of a causal model, or name other data in data.kind");
  require_usage(kind == TaskKind::language_model || recipe.model.medusa.heads == 0,
                Cause{ErrorCode::conflict, "model.medusa"}, "model.medusa is trained by task.kind ",
                name_of(TaskKind::language_model), " alone, and the recipe's is ", name,
                ": set model.medusa.heads=0");
  return task;
}

}  // namespace

TaskKind task_kind(const Recipe& recipe) {
  return recipe.task ? recipe.task->kind : default_task(recipe.data);
}

void require_task(const Recipe& recipe) {
  entry_of(recipe);
}

void check_task(const Recipe& recipe, const Transformer& model) {
  entry_of(recipe).check(recipe, model);
}

std::unique_ptr<Task> make_task(const Recipe& recipe,
                                const std::shared_ptr<const Tokenizer>& tokenizer) {
  const DataConfig& data = recipe.data;
  const bool pattern = data.path.find_first_of("*?") != std::string::npos;
  require(
      data.path.empty() || pattern || exists(data.path),
      Cause{ErrorCode::not_found, "data.path", data.path}, "there are no data at '", data.path,
      "' (data.path); say where they are with data.path=DIR, evaluating with --set data.path=DIR");
  return entry_of(recipe).make(recipe, tokenizer);
}

}  // namespace linnet
