// The `task` section of a recipe.
#pragma once

#include <string_view>

#include "core/config.h"
#include "data/data_config.h"
#include "data/masking.h"

namespace linnet {

// What is trained: the next token of texts, the tokens that are masked in texts, the class of
// labelled examples, or the tokens to predict at some positions of generated sequences.
enum class TaskKind { language_model, masked_language_model, classification, token_prediction };

// The keys beside `kind` are those of masked language models.
struct TaskConfig : MaskingOptions {
  TaskKind kind = TaskKind::language_model;

  void validate(const ConfigNode& at) const;
  static void describe(ConfigDescription<TaskConfig>& d);
};

// As recipes write it.
std::string_view name_of(TaskKind kind);

// The task of a recipe that names none: the one that such data are for.
TaskKind default_task(const DataConfig& data);

}  // namespace linnet
