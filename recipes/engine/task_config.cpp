#include "recipes/engine/task_config.h"

#include "data/registry.h"

namespace linnet {

void TaskConfig::describe(ConfigDescription<TaskConfig>& d) {
  d.choice(
       "kind", &TaskConfig::kind,
       {{"language_model", TaskKind::language_model}, {"classification", TaskKind::classification}},
       "language_model: the next token of texts; classification: the class of labelled "
       "examples")
      .required();
}

std::string_view name_of(TaskKind kind) {
  return kind == TaskKind::language_model ? "language_model" : "classification";
}

TaskKind default_task(const DataConfig& data) {
  return gives_labels(data) ? TaskKind::classification : TaskKind::language_model;
}

}  // namespace linnet
