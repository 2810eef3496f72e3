// Stands for attention/layer_choice.cpp, which would bring every mechanism with it: the attention
// section of a recipe is taken as it is.
#include "attention/layer_choice.h"

namespace linnet {

ResolvedAttention resolve_attention(const ConfigNode& attention, Form, int64_t) {
  return {attention, {}};
}

}  // namespace linnet
