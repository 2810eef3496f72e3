// The decode state of a text that a model has read, in a file: read once, continued many times.
#pragma once

#include <string>

#include "recipes/engine/generator.h"

namespace linnet {

// safetensors: `hidden`, `last`, and `layers.N.NAME` for each tensor of the state. Its metadata
// names the format, the tokens read, and XXH3-128 hashes of the model's weights and of the tensors.
// Written whole or not at all. A mechanism with a constant state has files of one size.
void save_state(const std::string& path, const Transformer& model, const ReadText& text);

// On the model's device; `seen` is empty. Every byte is verified. Throws Error for a file that is
// damaged, no state, or a state of another model or of other weights.
ReadText load_state(const std::string& path, const Transformer& model);

}  // namespace linnet
