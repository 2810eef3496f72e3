// Copies of slices of batches.
#include "attention/common/time_slices.h"

#include <cstring>

namespace linnet {

Tensor slice_time(const Tensor& x, int64_t begin, int64_t end) {
  if (!x.defined()) return {};
  std::vector<int64_t> sizes = x.shape().sizes();
  const int64_t rows = sizes[0], length = sizes[1];
  sizes[1] = end - begin;
  const Tensor out = Tensor::empty(Shape(sizes), x.dtype());
  const size_t token = x.bytes() / static_cast<size_t>(rows * length);
  for (int64_t b = 0; b < rows; ++b) {
    std::memcpy(static_cast<char*>(out.raw()) + static_cast<size_t>(b * (end - begin)) * token,
                static_cast<const char*>(x.raw()) + static_cast<size_t>(b * length + begin) * token,
                static_cast<size_t>(end - begin) * token);
  }
  return out;
}

Tensor join_time(const std::vector<Tensor>& slices, DType dtype) {
  std::vector<int64_t> sizes = slices.front().shape().sizes();
  sizes[1] = 0;
  for (const Tensor& slice : slices) sizes[1] += slice.size(1);
  const Tensor out = Tensor::empty(Shape(sizes), dtype);
  const int64_t rows = sizes[0];
  const int64_t width = rows * sizes[1] > 0 ? out.elements() / (rows * sizes[1]) : 0;
  int64_t begin = 0;
  for (const Tensor& slice : slices) {
    const int64_t n = slice.size(1);
    const Tensor converted = slice.to(dtype);
    for (int64_t b = 0; b < rows; ++b) {
      out.slice((b * sizes[1] + begin) * width, {n * width})
          .copy_from(converted.slice(b * n * width, {n * width}));
    }
    begin += n;
  }
  return out;
}

}  // namespace linnet
