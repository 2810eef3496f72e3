#include "recipes/engine/packed_model.h"

#include "layers/rates.h"

namespace linnet {

namespace {

constexpr int64_t kLeastColumns = 16;

bool is_packed(const ParameterSet::Entry& entry) {
  return entry.shape.rank() == 2 && entry.shape[1] >= kLeastColumns && !is_rate(entry.name);
}

}  // namespace

void require_packable(const Transformer& model, WeightFormat format) {
  if (format == WeightFormat::f32) return;
  const Cause cause{ErrorCode::conflict, "--weights"};
  require_usage(model.device().kind == DeviceKind::cpu, cause, "--weights ", name_of(format),
                " is for steps on the CPU, and this model is on ", name_of(model.device()),
                ": leave it out, or add --device cpu");
  for (const ParameterSet::Entry& entry : model.parameters().entries()) {
    const DType dtype = entry.variable.value().dtype();
    require_usage(!is_packed(entry) || dtype == DType::f32, cause, "--weights ", name_of(format),
                  " is for models in f32, and this one has its weights in ", name_of(dtype),
                  " already: leave it out");
  }
}

std::unique_ptr<PackedWeights> pack_weights(const Transformer& model, WeightFormat format) {
  if (format == WeightFormat::f32) return nullptr;
  require_packable(model, format);
  auto packed = std::make_unique<PackedWeights>(format);
  for (const ParameterSet::Entry& entry : model.parameters().entries()) {
    if (is_packed(entry)) packed->add(entry.variable.value());
  }
  return packed;
}

size_t bytes_of_step(const Transformer& model, const PackedWeights* packed) {
  size_t bytes = 0;
  for (const ParameterSet::Entry& entry : model.parameters().entries()) {
    const bool looked_up = entry.name == "positions.weight" || entry.name == "token_types.weight" ||
                           (entry.name == "embedding.weight" && !model.config().tie_embeddings);
    // Of a source, which is read once.
    const bool encodes = entry.name.starts_with("encoder.") ||
                         entry.name.find("cross_attention.k.") != std::string::npos ||
                         entry.name.find("cross_attention.v.") != std::string::npos;
    if (looked_up || encodes || entry.name.starts_with("medusa.")) continue;
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
