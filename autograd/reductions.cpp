#include "autograd/reductions.h"

#include <cmath>
#include <limits>

#include "autograd/arithmetic.h"
#include "autograd/cuda/reductions.h"
#include "autograd/layout.h"
#include "autograd/reductions_rule.h"
#include "autograd/views.h"
#include "core/cuda/backend.h"
#include "core/vector_math.h"

namespace linnet {
namespace {

Lines lines_along(const Shape& shape, int64_t dimension, const char* what) {
  const auto along = static_cast<size_t>(dimension_of(shape, dimension, what));
  Lines lines{1, shape.sizes()[along], 1};
  for (size_t d = 0; d < shape.rank(); ++d) {
    if (d != along) (d < along ? lines.outer : lines.inner) *= shape.sizes()[d];
  }
  return lines;
}

// With size 1 along the dimension.
Shape reduced(const Shape& shape, int64_t dimension, const char* what) {
  return shape.with(dimension_of(shape, dimension, what), 1);
}

// body(line) for every line, on all threads.
template <typename Body>
void for_lines(const Lines& lines, const Body& body) {
  const int64_t grain = std::max<int64_t>(1, 8192 / std::max<int64_t>(1, lines.n));
  parallel_for(lines.count(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) body(line);
  });
}

// What softmax and logsumexp need of a line: exp(x - shift) adds up to `sum`.
template <typename C>
struct ExpSum {
  C shift, sum;
};
template <typename C, typename Load>
ExpSum<C> exp_sum(int64_t n, const Load& load) {
  C largest = -std::numeric_limits<C>::infinity();
  for (int64_t j = 0; j < n; ++j) largest = std::max(largest, load(j));
  ExpSum<C> result{std::isinf(largest) && largest < 0 ? C{0} : largest, C{0}};
  for (int64_t j = 0; j < n; ++j) result.sum += vector_exp(load(j) - result.shift);
  return result;
}

Tensor softmax_forward(const Tensor& x, const Lines& lines) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      cuda::softmax(x, lines, y);
      return y;
    }
  }
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const T* from = x.data<T>();
    T* to = y.data<T>();
    for_lines(lines, [&](int64_t line) {
      const auto load = [&](int64_t j) { return static_cast<C>(from[lines.at(line, j)]); };
      const ExpSum<C> e = exp_sum<C>(lines.n, load);
      const C factor = e.sum == 0 ? C{0} : 1 / e.sum;
      for (int64_t j = 0; j < lines.n; ++j) {
        to[lines.at(line, j)] = static_cast<T>(vector_exp(load(j) - e.shift) * factor);
      }
    });
  });
  return y;
}

// dx = y (dy - sum of y dy).
Tensor softmax_backward(const Tensor& y, const Tensor& dy, const Lines& lines) {
  const Tensor dx = Tensor::empty(y.shape(), y.dtype(), y.device());
  if constexpr (kCuda) {
    if (on_cuda(y)) {
      cuda::softmax_backward(y, dy, lines, dx);
      return dx;
    }
  }
  dispatch_floating(y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const T *p = y.data<T>(), *d = dy.data<T>();
    T* to = dx.data<T>();
    for_lines(lines, [&](int64_t line) {
      C inner = 0;
      for (int64_t j = 0; j < lines.n; ++j) {
        const int64_t at = lines.at(line, j);
        inner += static_cast<C>(p[at]) * static_cast<C>(d[at]);
      }
      for (int64_t j = 0; j < lines.n; ++j) {
        const int64_t at = lines.at(line, j);
        to[at] = static_cast<T>(static_cast<C>(p[at]) * (static_cast<C>(d[at]) - inner));
      }
    });
  });
  return dx;
}

// y in the computing type.
void logsumexp_forward(const Tensor& x, const Lines& lines, const Tensor& y) {
  if constexpr (kCuda) {
    if (on_cuda(x)) return cuda::logsumexp(x, lines, y);
  }
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const T* from = x.data<T>();
    C* to = y.data<C>();
    for_lines(lines, [&](int64_t line) {
      const ExpSum<C> e =
          exp_sum<C>(lines.n, [&](int64_t j) { return static_cast<C>(from[lines.at(line, j)]); });
      to[line] = e.shift + std::log(e.sum);
    });
  });
}

// dx = dy exp(x - y), y in the computing type: rounding to bf16 would change the sum of the slopes.
void logsumexp_backward(const Tensor& x, const Tensor& y, const Tensor& dy, const Lines& lines,
                        const Tensor& dx) {
  if constexpr (kCuda) {
    if (on_cuda(x)) return cuda::logsumexp_backward(x, y, dy, lines, dx);
  }
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const T *from = x.data<T>(), *d = dy.data<T>();
    const C* whole = y.data<C>();
    T* to = dx.data<T>();
    for_lines(lines, [&](int64_t line) {
      const C all = whole[line], slope = static_cast<C>(d[line]);
      const bool dead = std::isinf(all) && all < 0;
      for (int64_t j = 0; j < lines.n; ++j) {
        const int64_t at = lines.at(line, j);
        to[at] = static_cast<T>(dead ? C{0} : slope * vector_exp(static_cast<C>(from[at]) - all));
      }
    });
  });
}

// The largest of each line, and its place i32.
void largest(const Tensor& x, const Lines& lines, const Tensor& y, const Tensor& places) {
  if constexpr (kCuda) {
    if (on_cuda(x)) return cuda::largest(x, lines, y, places);
  }
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const T* from = x.data<T>();
    for_lines(lines, [&](int64_t line) {
      int64_t best = 0;
      for (int64_t j = 1; j < lines.n; ++j) {
        const C value = static_cast<C>(from[lines.at(line, j)]);
        const C other = static_cast<C>(from[lines.at(line, best)]);
        if (value > other || (value != value && other == other)) best = j;
      }
      y.data<T>()[line] = from[lines.at(line, best)];
      places.data<int32_t>()[line] = static_cast<int32_t>(best);
    });
  });
}

// dx is dy at the place of each line, else 0.
Tensor at_places(const Tensor& dy, const Tensor& places, const Lines& lines, const Shape& shape) {
  const Tensor dx = Tensor::zeros(shape, dy.dtype(), dy.device());
  if constexpr (kCuda) {
    if (on_cuda(dy)) {
      cuda::put_at_places(dy, places, lines, dx);
      return dx;
    }
  }
  dispatch_floating(dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for_lines(lines, [&](int64_t line) {
      dx.data<T>()[lines.at(line, places.data<int32_t>()[line])] = dy.data<T>()[line];
    });
  });
  return dx;
}

Tensor running_sums(const Tensor& x, const Lines& lines, bool reverse) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      cuda::running_sums(x, lines, reverse, y);
      return y;
    }
  }
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const T* from = x.data<T>();
    T* to = y.data<T>();
    for_lines(lines, [&](int64_t line) {
      C sum = 0;
      for (int64_t step = 0; step < lines.n; ++step) {
        const int64_t at = lines.at(line, reverse ? lines.n - 1 - step : step);
        sum += static_cast<C>(from[at]);
        to[at] = static_cast<T>(sum);
      }
    });
  });
  return y;
}

}  // namespace

Variable sum(const Variable& x, int64_t dimension) {
  return record("sum", sum_to(x.value(), reduced(x.shape(), dimension, "sum")), {x},
                [shape = x.shape()](Gradients& gradients) {
                  gradients.add(0, expanded(gradients.output(), shape));
                });
}

Variable mean(const Variable& x, int64_t dimension) {
  const int64_t n = lines_along(x.shape(), dimension, "mean").n;
  require(n > 0, "mean: dimension ", dimension, " of ", x.shape(), " is empty");
  return scale(sum(x, dimension), 1 / static_cast<double>(n));
}

Variable max(const Variable& x, int64_t dimension) {
  const Lines lines = lines_along(x.shape(), dimension, "max");
  require(lines.n > 0, "max: dimension ", dimension, " of ", x.shape(), " is empty");
  const Device device = x.value().device();
  const Tensor y = Tensor::empty(reduced(x.shape(), dimension, "max"), x.dtype(), device);
  const Tensor places = Tensor::empty(y.shape(), DType::i32, device);
  largest(x.value(), lines, y, places);
  return record("max", y, {x}, [places, lines, shape = x.shape()](Gradients& gradients) {
    gradients.add(0, at_places(gradients.output(), places, lines, shape));
  });
}

Variable logsumexp(const Variable& x, int64_t dimension) {
  const Lines lines = lines_along(x.shape(), dimension, "logsumexp");
  const DType computed = x.dtype() == DType::bf16 ? DType::f32 : x.dtype();
  const Tensor y =
      Tensor::empty(reduced(x.shape(), dimension, "logsumexp"), computed, x.value().device());
  logsumexp_forward(x.value(), lines, y);
  return record("logsumexp", y.to(x.dtype()), {x}, [x = x.value(), y, lines](Gradients& gradients) {
    const Tensor dx = Tensor::empty(x.shape(), x.dtype(), x.device());
    logsumexp_backward(x, y, gradients.output(), lines, dx);
    gradients.add(0, dx);
  });
}

Variable softmax(const Variable& x, int64_t dimension) {
  const Lines lines = lines_along(x.shape(), dimension, "softmax");
  const Tensor y = softmax_forward(x.value(), lines);
  return record("softmax", y, {x}, [y, lines](Gradients& gradients) {
    gradients.add(0, softmax_backward(y, gradients.output(), lines));
  });
}

Variable cumulative_sum(const Variable& x, int64_t dimension, bool reverse) {
  const Lines lines = lines_along(x.shape(), dimension, "cumulative_sum");
  return record("cumulative_sum", running_sums(x.value(), lines, reverse), {x},
                [lines, reverse](Gradients& gradients) {
                  gradients.add(0, running_sums(gradients.output(), lines, !reverse));
                });
}

}  // namespace linnet
