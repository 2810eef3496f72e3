#include "core/packed_weights.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace linnet {
namespace {

constexpr std::array kFormats = {WeightFormat::f32, WeightFormat::bf16, WeightFormat::int8};
constexpr float kLargest = 127;

thread_local const PackedWeights* current = nullptr;

// Rounds a row and returns its scale; `to` receives the integers.
float pack_row(float* row, int64_t k, int8_t* to) {
  float largest = 0;
  for (int64_t i = 0; i < k; ++i) {
    require(std::isfinite(row[i]), "weights of which some are not finite cannot be packed");
    largest = std::max(largest, std::abs(row[i]));
  }
  const float scale = largest / kLargest;
  for (int64_t i = 0; i < k; ++i) {
    const float quotient = scale > 0 ? std::nearbyint(row[i] / scale) : 0.0F;
    to[i] = static_cast<int8_t>(std::clamp(quotient, -kLargest, kLargest));
    row[i] = scale * static_cast<float>(to[i]);
  }
  return scale;
}

}  // namespace

std::string_view name_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
      return "f32";
    case WeightFormat::bf16:
      return "bf16";
    case WeightFormat::int8:
      return "int8";
  }
  throw Error("name_of: not a format of weights");
}

WeightFormat weight_format_from_name(std::string_view name) {
  for (const WeightFormat format : kFormats) {
    if (name_of(format) == name) return format;
  }
  throw UsageError({ErrorCode::unknown_name, "--weights"},
                   concat("unknown format of weights '", name, "'; expected f32, bf16 or int8"));
}

void PackedWeights::add(const Tensor& matrix) {
  if (format_ == WeightFormat::f32) return;
  require(matrix.shape().rank() == 2, "packed weights: expected a matrix, got ", matrix.shape());
  auto* values = matrix.data<float>();
  PackedMatrix packed{format_, {}, {}};
  if (format_ == WeightFormat::bf16) {
    packed.values = matrix.to(DType::bf16);
    matrix.copy_from(packed.values);
    bytes_ += packed.values.bytes();
  } else {
    const int64_t n = matrix.size(0), k = matrix.size(1);
    packed.values = Tensor::empty({n, k}, DType::u8);
    packed.scales = Tensor::empty({n});
    auto* integers = reinterpret_cast<int8_t*>(packed.values.data<uint8_t>());
    for (int64_t row = 0; row < n; ++row) {
      packed.scales.data<float>()[row] = pack_row(values + row * k, k, integers + row * k);
    }
    bytes_ += packed.values.bytes() + packed.scales.bytes();
  }
  matrices_.insert_or_assign(values, std::move(packed));
}

const PackedMatrix* PackedWeights::find(const void* elements, int64_t n, int64_t k) const {
  const auto found = matrices_.find(elements);
  if (found == matrices_.end()) return nullptr;
  const Shape& shape = found->second.values.shape();
  return shape[0] == n && shape[1] == k ? &found->second : nullptr;
}

UsePackedWeights::UsePackedWeights(const PackedWeights* weights) : before_(current) {
  current = weights;
}

UsePackedWeights::~UsePackedWeights() {
  current = before_;
}

const PackedWeights* packed_weights() {
  return current;
}

}  // namespace linnet
