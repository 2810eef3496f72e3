// From the `model:` section to a model, and from weights on disk back into it.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "layers/model.h"
#include "recipes/engine/memory_need.h"
#include "recipes/engine/recipe.h"

namespace linnet {

// The model without weights: its parameters have names and shapes. Decoders get causal attention,
// encoders noncausal, decoders behind an encoder cross-attention too. Throws UsageError for a
// mechanism without that form, and with the place of the section that names it, for one that the
// sizes do not suit.
std::unique_ptr<Transformer> declare_model(const Recipe& recipe, const ModelSizes& sizes);

// The same with its initial weights, on `device`. Throws UsageError where memory cannot suffice for
// that use, before any is asked for, and Error where it does not.
std::unique_ptr<Transformer> build_model(const Recipe& recipe, const ModelSizes& sizes,
                                         Device device = {}, ModelUse use = ModelUse::scoring);

// Throws UsageError where the model can process fewer tokens than the training context.
void require_context(const Transformer& model, int64_t context);

// Throws UsageError unless the model's mechanism has a state that causal decoding carries, and
// behind an encoder cross-attention that reads it token by token. `what` needs it.
void require_decode_state(const Transformer& model, std::string_view what);

// The inverse of parameters.tensors(). Throws Error naming a tensor that is missing, unknown or of
// another shape or dtype.
void load_weights(const ParameterSet& parameters, const std::map<std::string, Tensor>& weights,
                  const std::string& label);

// Elements that checkpoints keep beside the parameters: drawn once and never trained.
int64_t untrained_elements(const ParameterSet& parameters);

}  // namespace linnet
