// A model's weights in fewer bytes.
#pragma once

#include <memory>

#include "core/packed_weights.h"
#include "layers/model.h"

namespace linnet {

// Throws UsageError for a model on a GPU or in bf16, unless the format is f32.
void require_packable(const Transformer& model, WeightFormat format);

// Rounds the model's matrices of parameters (of at least 16 columns, tables among them, rates
// not) to values that the format holds, and packs them for UsePackedWeights; null, with nothing
// done, for f32. Everything else that reads the model sees the rounded values in f32, for which
// they keep their memory. Throws as require_packable().
std::unique_ptr<PackedWeights> pack_weights(const Transformer& model, WeightFormat format);

// Bytes of parameters that a step of generation reads: all but tables of which it looks up rows,
// Medusa heads, which guess in trees alone, an encoder and what reads its vectors, the keys and
// values of cross-attention.
// `packed` may be null.
size_t bytes_of_step(const Transformer& model, const PackedWeights* packed);

}  // namespace linnet
