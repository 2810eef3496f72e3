#include "recipes/engine/task_config.h"

#include "data/registry.h"

namespace linnet {

void TaskConfig::describe(ConfigDescription<TaskConfig>& d) {
  d.choice("kind", &TaskConfig::kind,
           {{"language_model", TaskKind::language_model},
            {"classification", TaskKind::classification},
            {"token_prediction", TaskKind::token_prediction}},
           "language_model: the next token of texts; classification: the class of labelled "
           "examples; token_prediction: the tokens at the scored positions of generated sequences")
      .required();
}

std::string_view name_of(TaskKind kind) {
  switch (kind) {
    case TaskKind::language_model:
      return "language_model";
    case TaskKind::classification:
      return "classification";
    case TaskKind::token_prediction:
      break;
  }
  return "token_prediction";
}

TaskKind default_task(const DataConfig& data) {
  switch (form_of(data)) {
    case DataForm::texts:
      return TaskKind::language_model;
    case DataForm::labels:
      return TaskKind::classification;
    case DataForm::sequences:
      break;
  }
  return TaskKind::token_prediction;
}

}  // namespace linnet
