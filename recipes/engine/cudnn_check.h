// What `train.backend: cudnn` cannot train, told before anything is loaded.
#pragma once

#include "recipes/engine/model_attention.h"
#include "recipes/engine/recipe.h"

namespace linnet {

// Adds to `errors` one sentence for each thing of the recipe that cuDNN's softmax attention does
// not cover (attention/primitives/block_attention/cuda/path.cpp refuses it at the first call).
// `attention`: that of recipe.model; `train`: the section as given, for its places.
void check_cudnn(const Recipe& recipe, const ModelAttention& attention, const ConfigNode& train,
                 ConfigErrors& errors);

}  // namespace linnet
