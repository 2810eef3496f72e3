// A run's model as a pretrained model of other programs.
#pragma once

#include <string>
#include <vector>

#include "recipes/engine/run_state.h"

namespace linnet {

// Writes config.json, model.safetensors and the tokenizer's files of a model into `folder`, which
// is made, and holds none of these. The family is the one whose config.json says what the recipe's
// `model` says; parameters have its names, layouts and fused matrices, others (of a mechanism that
// the family has not, say) keep ours, behind "linnet.". Returns lines for the log: what a reader of
// the files needs beside them. Throws UsageError where no family has such a model, naming for each
// the first key that differs.
std::vector<std::string> export_model(const LoadedModel& loaded, const std::string& folder);

}  // namespace linnet
