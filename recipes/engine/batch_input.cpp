// Batches as models see them.
#include "recipes/engine/task.h"

namespace linnet {
namespace {

template <typename T>
void copy(const std::vector<T>& from, const Tensor& to) {
  require(from.empty() == !to.defined(), "a batch has another form than the one before");
  if (to.defined()) to.copy_from(Tensor::from(from, to.shape()));
}

}  // namespace

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

void copy_batch(const Batch& batch, const ModelInput& input, const Tensor& targets) {
  copy(batch.tokens, input.tokens);
  copy(batch.positions, input.positions);
  copy(batch.segments, input.segments);
  copy(batch.mask, input.key_mask);
  copy(batch.example_ids, input.place.examples);
  copy(batch.targets.empty() ? batch.labels : batch.targets, targets);
}

}  // namespace linnet
