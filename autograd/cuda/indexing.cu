// Rows by number, and sums of rows by number.
#include "autograd/cuda/indexing.h"

#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {

void gather_rows(const Tensor& x, const Tensor& index, int64_t rows, int64_t inner,
                 const Tensor& y) {
  const StoredValues from = stored_values(x);
  const StoredResults to = stored_results(y);
  const int32_t* number = pointer<const int32_t>(index);
  const int64_t m = index.size(-1);
  for_each("gather_rows", y.elements(), [=] __device__(int64_t i) {
    const int64_t place = i / inner, row = number[place];
    const bool inside = 0 <= row && row < rows;
    to.put(i, inside ? from.at((place / m * rows + row) * inner + i % inner) : 0.0f);
  });
}

void scatter_rows(const Tensor& x, const Tensor& sorted, const Tensor& order, int64_t rows,
                  int64_t inner, const Tensor& y) {
  const StoredValues from = stored_values(x);
  const StoredResults to = stored_results(y);
  const int32_t *number = pointer<const int32_t>(sorted), *place = pointer<const int32_t>(order);
  const int64_t m = sorted.size(-1);
  // A thread for each element finds its row in the sorted index: sums need no atomics.
  for_each("scatter_rows", y.elements(), [=] __device__(int64_t i) {
    const int64_t row = i / inner % rows, first = i / inner / rows * m;
    int64_t low = first, high = first + m;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (number[middle] < row) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    double sum = 0;
    for (; low < first + m && number[low] == row; ++low) {
      sum += static_cast<double>(from.at((first + place[low]) * inner + i % inner));
    }
    to.put(i, static_cast<float>(sum));
  });
}

}  // namespace linnet::cuda
