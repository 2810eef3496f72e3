#include "autograd/indexing.h"

#include <algorithm>

#include "autograd/cuda/indexing.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

// Rows [outer, rows, inner] of x that index [outer, m] numbers.
struct RowLayout {
  int64_t outer = 1, rows = 0, inner = 1, m = 0;
};

// `rows` is the size of the dimension that indices count along.
RowLayout layout_of(const Tensor& x, const Tensor& index, int64_t rows, const char* what) {
  const size_t leading = index.shape().rank() - 1;
  bool fits = index.shape().rank() >= 1 && index.dtype() == DType::i32 &&
              index.device() == x.device() && x.shape().rank() > leading;
  RowLayout layout{1, rows, 1, fits ? index.size(-1) : 0};
  for (size_t d = 0; fits && d < leading; ++d) {
    fits = x.shape().sizes()[d] == index.shape().sizes()[d];
    layout.outer *= x.shape().sizes()[d];
  }
  require(fits, what, ": x ", x.shape(), " and index ", index.shape(), " ", name_of(index.dtype()),
          ": expected i32 with the leading dimensions of x and one more");
  for (size_t d = leading + 1; d < x.shape().rank(); ++d) layout.inner *= x.shape().sizes()[d];
  if (!on_cuda(index)) {
    const int32_t* number = index.data<int32_t>();
    for (int64_t i = 0; i < index.elements(); ++i) {
      require(-1 <= number[i] && number[i] < rows, what, ": index ", number[i],
              " is outside of [0, ", rows, ")");
    }
  }
  return layout;
}

// The shape of x with another size along the dimension that indices count along.
Shape with_rows(const Shape& shape, const Tensor& index, int64_t rows) {
  std::vector<int64_t> sizes = shape.sizes();
  sizes[index.shape().rank() - 1] = rows;
  return Shape(std::move(sizes));
}

Tensor taken(const Tensor& x, const Tensor& index, const RowLayout& layout) {
  const Tensor y = Tensor::empty(with_rows(x.shape(), index, layout.m), x.dtype(), x.device());
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      cuda::gather_rows(x, index, layout.rows, layout.inner, y);
      return y;
    }
  }
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* from = x.data<T>();
    T* to = y.data<T>();
    const int32_t* number = index.data<int32_t>();
    parallel_for(layout.outer * layout.m,
                 std::max<int64_t>(1, 16384 / std::max<int64_t>(1, layout.inner)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     const int64_t row = i / layout.m * layout.rows + number[i];
                     if (number[i] < 0) {
                       std::fill_n(to + i * layout.inner, layout.inner, T(0));
                     } else {
                       std::copy_n(from + row * layout.inner, layout.inner, to + i * layout.inner);
                     }
                   }
                 });
  });
  return y;
}

Tensor added(const Tensor& x, const Tensor& index, const RowLayout& layout) {
  const Tensor y = Tensor::empty(with_rows(x.shape(), index, layout.rows), x.dtype(), x.device());
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      cuda::scatter_rows(x, index, layout.rows, layout.inner, y);
      return y;
    }
  }
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const int32_t* number = index.data<int32_t>();
    // A thread has channels of its own, so that the order of each sum is fixed.
    const int64_t width = std::clamp<int64_t>(layout.inner, 1, 64);
    const int64_t parts = (layout.inner + width - 1) / width;
    parallel_for(layout.outer * parts, 1, [&](int64_t begin, int64_t end) {
      std::vector<C> sums(static_cast<size_t>(layout.rows * width));
      for (int64_t item = begin; item < end; ++item) {
        const int64_t o = item / parts, first = item % parts * width;
        const int64_t count = std::min(width, layout.inner - first);
        std::fill(sums.begin(), sums.end(), C(0));
        for (int64_t i = 0; i < layout.m; ++i) {
          const int64_t row = number[o * layout.m + i];
          if (row < 0) continue;
          const T* from = x.data<T>() + (o * layout.m + i) * layout.inner + first;
          C* to = sums.data() + row * width;
          for (int64_t c = 0; c < count; ++c) to[c] += static_cast<C>(from[c]);
        }
        for (int64_t row = 0; row < layout.rows; ++row) {
          T* to = y.data<T>() + (o * layout.rows + row) * layout.inner + first;
          for (int64_t c = 0; c < count; ++c) {
            to[c] = static_cast<T>(sums[static_cast<size_t>(row * width + c)]);
          }
        }
      }
    });
  });
  return y;
}

}  // namespace

Variable gather(const Variable& x, const Tensor& index) {
  const auto along = static_cast<int64_t>(index.shape().rank()) - 1;
  require(along >= 0 && along < std::ssize(x.shape().sizes()), "gather: x ", x.shape(),
          " and index ", index.shape());
  const RowLayout layout = layout_of(x.value(), index, x.size(along), "gather");
  return record("gather", taken(x.value(), index, layout), {x}, [=](Gradients& gradients) {
    gradients.add(0, added(gradients.output(), index, layout));
  });
}

Variable scatter_add(const Variable& x, const Tensor& index, int64_t n) {
  const auto along = static_cast<int64_t>(index.shape().rank()) - 1;
  require(n >= 0 && along >= 0 && along < std::ssize(x.shape().sizes()) &&
              x.size(along) == index.size(-1),
          "scatter_add: x ", x.shape(), " and index ", index.shape(), " into ", n, " rows");
  const RowLayout layout = layout_of(x.value(), index, n, "scatter_add");
  return record("scatter_add", added(x.value(), index, layout), {x}, [=](Gradients& gradients) {
    gradients.add(0, taken(gradients.output(), index, layout));
  });
}

}  // namespace linnet
