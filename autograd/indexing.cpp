#include "autograd/indexing.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "autograd/cuda/indexing.h"
#include "core/cuda/backend.h"
#include "core/sort.h"
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
  require(
      layout.m <= INT32_MAX, what, ": ", layout.m,
      " rows of an index are more than 32 bits count; make micro-batches or the context smaller");
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
  return shape.with(static_cast<int64_t>(index.shape().rank()) - 1, rows);
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

// The places of each row in one of the indices, in order: those of row r of index o are
// order[o m + begins[o (rows + 2) + r]] up to r + 1.
struct RowPlaces {
  std::vector<int32_t> begins, order;

  RowPlaces(const int32_t* index, const RowLayout& layout)
      : begins(static_cast<size_t>(layout.outer * (layout.rows + 2))),
        order(static_cast<size_t>(layout.outer * layout.m)) {
    const int64_t m = layout.m, width = layout.rows + 2;
    parallel_for(
        layout.outer, std::max<int64_t>(1, 16384 / (m + width)), [&](int64_t first, int64_t last) {
          for (int64_t o = first; o < last; ++o) {
            const int32_t* number = index + o * m;
            int32_t* begin = begins.data() + o * width;
            for (int64_t i = 0; i < m; ++i) ++begin[number[i] + 2];
            begin[1] = 0;
            std::partial_sum(begin, begin + width, begin);
            // begin[r + 1] moves from where row r begins to where it ends.
            for (int64_t i = 0; i < m; ++i) {
              if (number[i] < 0) continue;
              order[static_cast<size_t>(o * m + begin[number[i] + 1]++)] = static_cast<int32_t>(i);
            }
          }
        });
  }
};

// Sums of rows of x by number, those of one row in order; `in_double`: else in the computing type.
Tensor added(const Tensor& x, const Tensor& index, const RowLayout& layout, bool in_double) {
  const Tensor y = Tensor::empty(with_rows(x.shape(), index, layout.rows), x.dtype(), x.device());
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      const Tensor sorted = Tensor::empty(index.shape(), DType::i32, index.device());
      const Tensor order = Tensor::empty(index.shape(), DType::i32, index.device());
      sort_rows(index, sorted, order);
      cuda::scatter_rows(x, sorted, order, layout.rows, layout.inner, y);
      return y;
    }
  }
  const auto add_rows = [&](auto zero, auto none) {
    using T = decltype(zero);
    using Sum = decltype(none);
    const int64_t rows = layout.rows, inner = layout.inner;
    const RowPlaces places(index.data<int32_t>(), layout);
    const int64_t work = inner * (layout.m / std::max<int64_t>(1, rows) + 1);
    parallel_for(
        layout.outer * rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, work)),
        [&](int64_t begin, int64_t end) {
          std::vector<Sum> sums(static_cast<size_t>(inner));
          for (int64_t item = begin; item < end; ++item) {
            const int64_t o = item / rows;
            const int32_t* range = places.begins.data() + o * (rows + 2) + item % rows;
            std::fill(sums.begin(), sums.end(), Sum(0));
            for (int32_t n = range[0]; n < range[1]; ++n) {
              const int64_t i = o * layout.m + places.order[static_cast<size_t>(o * layout.m + n)];
              const T* from = x.data<T>() + i * inner;
              for (int64_t c = 0; c < inner; ++c)
                sums[static_cast<size_t>(c)] += static_cast<Sum>(from[c]);
            }
            std::transform(sums.begin(), sums.end(), y.data<T>() + item * inner,
                           [](Sum sum) { return static_cast<T>(static_cast<Compute<T>>(sum)); });
          }
        });
  };
  dispatch_floating(x.dtype(), [&](auto zero) {
    in_double ? add_rows(zero, double{}) : add_rows(zero, Compute<decltype(zero)>{});
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
    gradients.add(0, added(gradients.output(), index, layout, true));
  });
}

Variable gather(const Variable& x, const Tensor& index, const Tensor& inverse) {
  const auto along = static_cast<int64_t>(index.shape().rank()) - 1;
  require(along >= 0 && along < std::ssize(x.shape().sizes()) &&
              inverse.shape().rank() == index.shape().rank() && inverse.size(-1) == x.size(along),
          "gather: x ", x.shape(), ", index ", index.shape(), " and its inverse ", inverse.shape());
  const RowLayout layout = layout_of(x.value(), index, x.size(along), "gather");
  return record("gather", taken(x.value(), index, layout), {x}, [=](Gradients& gradients) {
    const Tensor& dy = gradients.output();
    gradients.add(0, taken(dy, inverse, layout_of(dy, inverse, layout.m, "gather")));
  });
}

Variable scatter_add(const Variable& x, const Tensor& index, int64_t n) {
  const auto along = static_cast<int64_t>(index.shape().rank()) - 1;
  require(n >= 0 && along >= 0 && along < std::ssize(x.shape().sizes()) &&
              x.size(along) == index.size(-1),
          "scatter_add: x ", x.shape(), " and index ", index.shape(), " into ", n, " rows");
  const RowLayout layout = layout_of(x.value(), index, n, "scatter_add");
  return record(
      "scatter_add", added(x.value(), index, layout, false), {x},
      [=](Gradients& gradients) { gradients.add(0, taken(gradients.output(), index, layout)); });
}

}  // namespace linnet
