// Stands for attention/layer_choice.cpp, which would bring every mechanism with it: the attention
// section of a recipe is taken as it is; and for layers/heads.cpp, which would bring the
// operations.
#include "attention/layer_choice.h"
#include "layers/heads.h"

namespace linnet {

ResolvedAttention resolve_attention(const ConfigNode& attention, Form, int64_t) {
  return {attention, {}};
}

std::vector<std::string> head_names() {
  return {"auto", "lra"};
}

}  // namespace linnet
