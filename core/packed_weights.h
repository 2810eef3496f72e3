// Weights in fewer bytes for steps of generation, which read each of them once: bf16, or 8-bit
// integers with a scale per row.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>

#include "core/tensor.h"

namespace linnet {

enum class WeightFormat : uint8_t { f32, bf16, int8 };
std::string_view name_of(WeightFormat format);
// Throws UsageError for anything but f32, bf16, int8.
WeightFormat weight_format_from_name(std::string_view name);

// A matrix [n,k] in a format.
struct PackedMatrix {
  WeightFormat format;
  Tensor values;  // bf16 [n,k], or u8 [n,k] that holds int8
  Tensor scales;  // int8: f32 [n]; a weight is its integer times the scale of its row
};

// Matrices in host memory, each with a packed copy.
class PackedWeights {
 public:
  explicit PackedWeights(WeightFormat format) : format_(format) {}
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;

  // Rounds a f32 matrix [n,k], in place, to values that the format holds (bf16: to nearest, even;
  // int8: to the nearest of 255 multiples of a 127th of the row's largest magnitude), and packs
  // them. Of format f32 it does nothing. The matrix has to outlive this object, unchanged.
  void add(const Tensor& matrix);
  WeightFormat format() const { return format_; }
  // Of the packed copies.
  size_t bytes() const { return bytes_; }
  // The packed copy of a whole matrix that was added; nullptr of anything else.
  const PackedMatrix* find(const void* elements, int64_t n, int64_t k) const;

 private:
  WeightFormat format_;
  size_t bytes_ = 0;
  std::unordered_map<const void*, PackedMatrix> matrices_;
};

// While it lives, products of few rows inside a SmallStep of this thread read packed copies
// (core/row_products.h) instead of the f32 matrices.
class UsePackedWeights {
 public:
  // `weights` may be null: the f32 matrices.
  explicit UsePackedWeights(const PackedWeights* weights);
  ~UsePackedWeights();
  UsePackedWeights(const UsePackedWeights&) = delete;
  UsePackedWeights& operator=(const UsePackedWeights&) = delete;

 private:
  const PackedWeights* before_;
};
// Those of this thread; null: none.
const PackedWeights* packed_weights();

}  // namespace linnet
