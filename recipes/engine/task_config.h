// The `task` section of a recipe.
#pragma once

#include <string_view>

#include "core/config.h"
#include "data/data_config.h"

namespace linnet {

// What is trained: the next token of texts, the class of labelled examples, or the tokens to
// predict at some positions of generated sequences.
enum class TaskKind { language_model, classification, token_prediction };

struct TaskConfig {
  TaskKind kind = TaskKind::language_model;

  static void describe(ConfigDescription<TaskConfig>& d);
};

// As recipes write it.
std::string_view name_of(TaskKind kind);

// The task of a recipe that names none: the one that such data are for.
TaskKind default_task(const DataConfig& data);

}  // namespace linnet
