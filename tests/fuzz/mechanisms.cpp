// Stands for attention/layer_choice.cpp and recipes/engine/model_attention.cpp, which would bring
// every mechanism with them: the attention section of a recipe is taken as it is; and for
// layers/heads.cpp, which would bring the operations.
#include "attention/layer_choice.h"
#include "layers/heads.h"
#include "recipes/engine/model_attention.h"

namespace linnet {

void require_grouped_queries(const ConfigNode&, int64_t) {}

std::vector<LayerChoice> layer_choices(const ConfigNode&, int64_t) {
  return {};
}

ModelAttention resolve_model_attention(const ModelConfig& model, const ConfigNode&, ConfigErrors&) {
  return {{{"attention", model.attention}}, {}};
}

std::vector<std::string> head_names() {
  return {"auto", "lra"};
}

}  // namespace linnet
