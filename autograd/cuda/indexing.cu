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

void scatter_rows(const Tensor& x, const Tensor& index, int64_t rows, int64_t inner,
                  const Tensor& y) {
  const StoredValues from = stored_values(x);
  const StoredResults to = stored_results(y);
  const int32_t* number = pointer<const int32_t>(index);
  const int64_t m = index.size(-1);
  // A thread for each element reads all indices: the order of its sum is fixed without atomics.
  for_each("scatter_rows", y.elements(), [=] __device__(int64_t i) {
    const int64_t row = i / inner % rows, first = i / inner / rows * m;
    float sum = 0;
    for (int64_t j = first; j < first + m; ++j) {
      if (number[j] == row) sum += from.at(j * inner + i % inner);
    }
    to.put(i, sum);
  });
}

}  // namespace linnet::cuda
