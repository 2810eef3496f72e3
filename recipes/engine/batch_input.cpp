// Batches as models see them.
#include "recipes/engine/task.h"

namespace linnet {

ModelInput model_input(const Batch& batch) {
  const Shape shape{batch.B, batch.T};
  ModelInput input;
  input.tokens = Tensor::from(batch.tokens, shape);
  if (!batch.positions.empty()) input.positions = Tensor::from(batch.positions, shape);
  if (!batch.segments.empty()) input.segments = Tensor::from(batch.segments, shape);
  if (!batch.mask.empty()) input.key_mask = Tensor::from(batch.mask, shape);
  input.place.examples = Tensor::from(batch.example_ids, {batch.B});
  return input;
}

Tensor target_tensor(const Batch& batch) {
  if (batch.targets.empty()) return Tensor::from(batch.labels, {batch.B});
  return Tensor::from(batch.targets, {batch.B, batch.T});
}

}  // namespace linnet
