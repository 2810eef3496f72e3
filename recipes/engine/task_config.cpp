#include "recipes/engine/task_config.h"

#include "data/registry.h"

namespace linnet {

void TaskConfig::describe(ConfigDescription<TaskConfig>& d) {
  d.choice(
       "kind", &TaskConfig::kind,
       {{"language_model", TaskKind::language_model},
        {"masked_language_model", TaskKind::masked_language_model},
        {"classification", TaskKind::classification},
        {"token_prediction", TaskKind::token_prediction}},
       "language_model: the next token of texts; masked_language_model: tokens that are masked in "
       "texts; classification: the class of labelled examples; token_prediction: the tokens at the "
       "scored positions of generated sequences")
      .required();
  d.group<MaskingOptions>();
}

void TaskConfig::validate(const ConfigNode& at) const {
  const TaskConfig defaults;
  const auto only_masked = [&](bool set, const char* key) {
    if (!set || kind == TaskKind::masked_language_model) return;
    throw located_error(at.location_of(key), Cause{ErrorCode::conflict, key}, "task.", key,
                        " has a meaning only with kind: masked_language_model; remove it");
  };
  only_masked(rate != defaults.rate, "rate");
  only_masked(masked != defaults.masked, "masked");
  only_masked(random != defaults.random, "random");
  only_masked(per_token != defaults.per_token, "per_token");
  if (masked + random > 1) {
    throw located_error(at.location_of("random"), Cause{ErrorCode::out_of_range, "random"},
                        "task: masked ", masked, " and random ", random,
                        " are shares of the same words and together at most 1");
  }
}

std::string_view name_of(TaskKind kind) {
  switch (kind) {
    case TaskKind::language_model:
      return "language_model";
    case TaskKind::masked_language_model:
      return "masked_language_model";
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
