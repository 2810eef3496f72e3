#include "autograd/views.h"

namespace linnet {

std::vector<int64_t> strides_of(const Shape& shape) {
  std::vector<int64_t> strides(shape.rank(), 1);
  for (size_t d = shape.rank(); d-- > 1;) strides[d - 1] = strides[d] * shape.sizes()[d];
  return strides;
}

std::vector<int64_t> strides_in(const Shape& operand, const Shape& shape) {
  require(operand.rank() <= shape.rank(), operand, " does not broadcast to ", shape);
  const size_t missing = shape.rank() - operand.rank();
  std::vector<int64_t> strides = strides_of(operand);
  strides.insert(strides.begin(), missing, 0);
  for (size_t d = missing; d < shape.rank(); ++d) {
    const int64_t size = operand.sizes()[d - missing];
    require(size == 1 || size == shape.sizes()[d], operand, " does not broadcast to ", shape);
    if (size == 1) strides[d] = 0;
  }
  return strides;
}

Shape broadcast_shape(const Shape& a, const Shape& b, const char* what) {
  const Shape& longer = a.rank() >= b.rank() ? a : b;
  const Shape& shorter = a.rank() >= b.rank() ? b : a;
  std::vector<int64_t> sizes = longer.to_vector();
  const size_t missing = longer.rank() - shorter.rank();
  for (size_t d = missing; d < sizes.size(); ++d) {
    const int64_t other = shorter.sizes()[d - missing];
    require(sizes[d] == other || sizes[d] == 1 || other == 1, what, ": ", a, " and ", b,
            " do not broadcast: sizes of a dimension must be equal, or one of them 1");
    if (sizes[d] == 1) sizes[d] = other;
  }
  return Shape(std::move(sizes));
}

int64_t dimension_of(const Shape& shape, int64_t dimension, const char* what) {
  const auto rank = static_cast<int64_t>(shape.rank());
  require(-rank <= dimension && dimension < rank, what, ": ", shape, " has no dimension ",
          dimension);
  return dimension < 0 ? dimension + rank : dimension;
}

}  // namespace linnet
