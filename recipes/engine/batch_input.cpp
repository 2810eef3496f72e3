// Batches as models see them.
#include "recipes/engine/task.h"

namespace linnet {

ModelInput model_input(const Batch& batch, Device device) {
  const Shape shape{batch.B, batch.T};
  ModelInput input;
  input.tokens = Tensor::from(batch.tokens, shape, device);
  if (!batch.positions.empty()) input.positions = Tensor::from(batch.positions, shape, device);
  if (!batch.segments.empty()) input.segments = Tensor::from(batch.segments, shape, device);
  if (!batch.mask.empty()) input.key_mask = Tensor::from(batch.mask, shape, device);
  input.place.examples = Tensor::from(batch.example_ids, {batch.B}, device);
  return input;
}

Tensor target_tensor(const Batch& batch, Device device) {
  if (batch.targets.empty()) return Tensor::from(batch.labels, {batch.B}, device);
  return Tensor::from(batch.targets, {batch.B, batch.T}, device);
}

}  // namespace linnet
