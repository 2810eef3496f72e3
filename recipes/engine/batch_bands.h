// A batch's tokens and targets by band of the vocabulary, gathered where the batch is made.
#pragma once

#include "data/batch.h"
#include "layers/model_config.h"

namespace linnet {

// Fills in what adaptive inputs and an adaptive head of that model read; nothing for others. Throws
// as bands_of().
void add_bands(const ModelConfig& model, int64_t vocabulary, Batch& batch);

}  // namespace linnet
