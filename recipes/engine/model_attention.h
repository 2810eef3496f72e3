// The mechanisms that a recipe's `model` names, read once.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "layers/model_config.h"
#include "layers/token_mixer.h"

namespace linnet {

// The sections with all parameters of their mechanisms filled in, by key of `model`, and what makes
// the attention of every layer and form from them.
struct ModelAttention {
  std::vector<std::pair<std::string, ConfigNode>> sections;
  MixerFactory mixer;
};

// Adds to `errors` what resolve_attention refuses, unless `given`, the recipe's `model`, lacks the
// section, of which others tell; then the result is not to be used.
ModelAttention resolve_model_attention(const ModelConfig& model, const ConfigNode& given,
                                       ConfigErrors& errors);

// No option of a mechanism is without effect in all of the forms that its section is read for.
// Throws UsageError.
void require_attention_effects(const ModelConfig& model);

}  // namespace linnet
