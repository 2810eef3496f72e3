#include "attention/linformer/cuda/position_table.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {

void position_table(const Tensor& weight, const Tensor& table) {
  const int64_t rows = weight.size(0) * weight.size(1), L = weight.size(2);
  const int64_t columns = table.size(1);
  const float* from = pointer<float>(weight);
  float* to = pointer<float>(table);
  for_each("position_table", table.elements(),
           [=] __device__(int64_t i) { to[i] = from[i % columns % rows * L + i / columns]; });
}

void position_table_backward(const Tensor& dtable, const Tensor& dweight) {
  const int64_t rows = dweight.size(0) * dweight.size(1), L = dweight.size(2);
  const int64_t columns = dtable.size(1);
  const float* from = pointer<float>(dtable);
  float* to = pointer<float>(dweight);
  for_each("position_table_backward", dweight.elements(), [=] __device__(int64_t i) {
    const int64_t row = i / L, p = i % L;
    float total = 0;
    for (int64_t column = row; column < columns; column += rows) {
      total += from[p * columns + column];
    }
    to[i] = total;
  });
}

}  // namespace linnet::cuda
