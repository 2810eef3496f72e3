#include "attention/linformer/position_table.h"

#include "attention/linformer/cuda/position_table.h"
#include "core/cuda/backend.h"
#include "core/error.h"

namespace linnet {
namespace {

// Element (h, l, p) of the table is element (h or 0, l, p) of the weight.
template <typename T>
void fill(const Tensor& weight, const Tensor& table) {
  const int64_t G = weight.size(0), N = weight.size(1), L = weight.size(2);
  const int64_t columns = table.size(1);
  const T* from = weight.data<T>();
  T* to = table.data<T>();
  for (int64_t p = 0; p < L; ++p) {
    for (int64_t i = 0; i < columns; ++i) to[p * columns + i] = from[i % (G * N) * L + p];
  }
}

template <typename T>
void sum(const Tensor& dtable, const Tensor& dweight) {
  const int64_t G = dweight.size(0), N = dweight.size(1), L = dweight.size(2);
  const int64_t columns = dtable.size(1);
  const T* from = dtable.data<T>();
  T* to = dweight.data<T>();
  for (int64_t p = 0; p < L; ++p) {
    for (int64_t i = 0; i < columns; ++i) to[i % (G * N) * L + p] += from[p * columns + i];
  }
}

}  // namespace

Variable position_table(const Variable& weight, int64_t heads) {
  const Shape& shape = weight.shape();
  require(shape.rank() == 3 && (shape[0] == 1 || shape[0] == heads),
          "position_table: expected weights [1 or ", heads, ", slots, positions], got ", shape);
  const DType dtype = weight.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Tensor from = weight.value().to(dtype);
  const Tensor table = Tensor::empty({shape[2], heads * shape[1]}, dtype, from.device());
  if constexpr (kCuda) {
    if (on_cuda(from)) {
      cuda::position_table(from, table);
      return record("position_table", table, {weight}, [shape](Gradients& gradients) {
        const Tensor& dtable = gradients.output();
        const Tensor dweight = Tensor::empty(shape, DType::f32, dtable.device());
        cuda::position_table_backward(dtable, dweight);
        gradients.add(0, dweight);
      });
    }
  }
  const bool wide = dtype == DType::f64;
  wide ? fill<double>(from, table) : fill<float>(from, table);
  return record("position_table", table, {weight}, [shape, wide](Gradients& gradients) {
    const Tensor& dtable = gradients.output();
    const Tensor dweight = Tensor::zeros(shape, dtable.dtype());
    wide ? sum<double>(dtable, dweight) : sum<float>(dtable, dweight);
    gradients.add(0, dweight);
  });
}

}  // namespace linnet
