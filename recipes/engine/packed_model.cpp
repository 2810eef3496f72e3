#include "recipes/engine/packed_model.h"

#include "layers/rates.h"

namespace linnet {

std::unique_ptr<PackedWeights> pack_weights(const Transformer& model, WeightFormat format) {
  if (format == WeightFormat::f32) return nullptr;
  const Cause cause{ErrorCode::conflict, "--weights"};
  require_usage(model.device().kind == DeviceKind::cpu, cause, "--weights ", name_of(format),
                " is for steps on the CPU, and this model is on ", name_of(model.device()),
                ": leave it out, or add --device cpu");
  constexpr int64_t kLeastColumns = 16;
  auto packed = std::make_unique<PackedWeights>(format);
  for (const ParameterSet::Entry& entry : model.parameters().entries()) {
    if (entry.shape.rank() != 2 || entry.shape[1] < kLeastColumns || is_rate(entry.name)) continue;
    const Tensor& matrix = entry.variable.value();
    require_usage(matrix.dtype() == DType::f32, cause, "--weights ", name_of(format),
                  " is for models in f32, and this one has its weights in ",
                  name_of(matrix.dtype()), " already: leave it out");
    packed->add(matrix);
  }
  return packed;
}

size_t bytes_of_step(const Transformer& model, const PackedWeights* packed) {
  size_t bytes = 0;
  for (const ParameterSet::Entry& entry : model.parameters().entries()) {
    const bool looked_up = entry.name == "positions.weight" || entry.name == "token_types.weight" ||
                           (entry.name == "embedding.weight" && !model.config().tie_embeddings);
    if (looked_up) continue;
    const Tensor& values = entry.variable.value();
    const PackedMatrix* own = packed == nullptr || values.shape().rank() != 2
                                  ? nullptr
                                  : packed->find(values.raw(), values.size(0), values.size(1));
    if (own == nullptr) {
      bytes += values.bytes();
    } else {
      bytes += own->values.bytes() + (own->scales.defined() ? own->scales.bytes() : 0);
    }
  }
  return bytes;
}

}  // namespace linnet
