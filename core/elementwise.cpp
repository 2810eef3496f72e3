#include "core/elementwise.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/cuda/backend.h"
#include "core/cuda/elementwise.h"
#include "core/threads.h"

namespace linnet {
namespace {

constexpr int64_t kGrain = 16384;
// Reductions add blocks of this many elements in order, so that the sum does not depend on threads.
constexpr int64_t kBlock = 4096;

void check_same(const char* function, const Tensor& a, const Tensor& b) {
  require(a.shape() == b.shape(), function, ": shapes ", a.shape(), " and ", b.shape(), " differ");
}

// Sum over elements of f(element), by fixed blocks.
template <typename F>
double reduce(const Tensor& t, const F& f) {
  return dispatch_floating(t.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* from = t.data<T>();
    const int64_t count = t.elements();
    const int64_t blocks = (count + kBlock - 1) / kBlock;
    std::vector<double> partial(static_cast<size_t>(blocks), 0.0);
    parallel_for(blocks, 4, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        // Eight interleaved sums: a fixed order that still vectorises.
        double lanes[8] = {};
        const int64_t first = block * kBlock;
        const int64_t last = std::min(count, first + kBlock);
        int64_t i = first;
        for (; i + 8 <= last; i += 8) {
          for (int64_t lane = 0; lane < 8; ++lane)
            lanes[lane] += f(static_cast<double>(from[i + lane]));
        }
        for (; i < last; ++i) lanes[0] += f(static_cast<double>(from[i]));
        double total = 0;
        for (const double lane : lanes) total += lane;
        partial[static_cast<size_t>(block)] = total;
      }
    });
    double total = 0;
    for (const double value : partial) total += value;
    return total;
  });
}

}  // namespace

void add_into(const Tensor& to, const Tensor& from) {
  if constexpr (kCuda) {
    if (on_cuda(to)) return cuda::add_into(to, from);
  }
  check_same("add_into", to, from);
  dispatch_floating(to.dtype(), [&](auto to_zero) {
    using T = decltype(to_zero);
    dispatch_floating(from.dtype(), [&](auto from_zero) {
      using F = decltype(from_zero);
      T* x = to.data<T>();
      const F* y = from.data<F>();
      parallel_for(to.elements(), kGrain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          x[i] = static_cast<T>(static_cast<Compute<T>>(x[i]) + static_cast<Compute<T>>(y[i]));
        }
      });
    });
  });
}

void add(const Tensor& a, const Tensor& b, const Tensor& to) {
  if constexpr (kCuda) {
    if (on_cuda(to)) return cuda::add(a, b, to);
  }
  check_same("add", a, b);
  check_same("add", a, to);
  dispatch_floating(to.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* x = a.data<T>();
    const T* y = b.data<T>();
    T* z = to.data<T>();
    parallel_for(to.elements(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        z[i] = static_cast<T>(static_cast<Compute<T>>(x[i]) + static_cast<Compute<T>>(y[i]));
      }
    });
  });
}

void scale_into(const Tensor& to, double factor) {
  if constexpr (kCuda) {
    if (on_cuda(to)) return cuda::scale_into(to, factor);
  }
  dispatch_floating(to.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* x = to.data<T>();
    const auto f = static_cast<Compute<T>>(factor);
    parallel_for(to.elements(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        x[i] = static_cast<T>(static_cast<Compute<T>>(x[i]) * f);
    });
  });
}

void add_row_into(const Tensor& to, const Tensor& row) {
  if constexpr (kCuda) {
    if (on_cuda(to)) return cuda::add_row_into(to, row);
  }
  const int64_t columns = to.size(-1);
  require(row.elements() == columns, "add_row_into: row ", row.shape(), " for ", to.shape());
  dispatch_floating(to.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* x = to.data<T>();
    const T* r = row.data<T>();
    parallel_for(columns == 0 ? 0 : to.elements() / columns,
                 std::max<int64_t>(1, kGrain / std::max<int64_t>(1, columns)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) {
                     for (int64_t c = 0; c < columns; ++c) {
                       x[i * columns + c] =
                           static_cast<T>(static_cast<Compute<T>>(x[i * columns + c]) +
                                          static_cast<Compute<T>>(r[c]));
                     }
                   }
                 });
  });
}

void sum_rows(const Tensor& from, const Tensor& row, bool accumulate) {
  if constexpr (kCuda) {
    if (on_cuda(from)) return cuda::sum_rows(from, row, accumulate);
  }
  const int64_t columns = from.size(-1);
  require(row.elements() == columns, "sum_rows: row ", row.shape(), " for ", from.shape());
  const int64_t rows = columns == 0 ? 0 : from.elements() / columns;
  dispatch_floating(from.dtype(), [&](auto from_zero) {
    using F = decltype(from_zero);
    using C = Compute<F>;
    const F* x = from.data<F>();
    dispatch_floating(row.dtype(), [&](auto row_zero) {
      using R = decltype(row_zero);
      R* to = row.data<R>();
      // Threads take columns, so that each sum runs over all rows in order.
      parallel_for(columns, 32, [&](int64_t begin, int64_t end) {
        std::vector<C> total(static_cast<size_t>(end - begin), C(0));
        for (int64_t r = 0; r < rows; ++r) {
          const F* line = x + r * columns + begin;
          for (int64_t c = 0; c < end - begin; ++c)
            total[static_cast<size_t>(c)] += static_cast<C>(line[c]);
        }
        for (int64_t c = begin; c < end; ++c) {
          const auto value = static_cast<Compute<R>>(total[static_cast<size_t>(c - begin)]);
          to[c] = static_cast<R>(accumulate ? static_cast<Compute<R>>(to[c]) + value : value);
        }
      });
    });
  });
}

double sum(const Tensor& t) {
  if constexpr (kCuda) {
    if (on_cuda(t)) {
      const Tensor result = Tensor::empty({}, DType::f64, t.device());
      cuda::sum(t, result);
      return result.item();
    }
  }
  return reduce(t, [](double x) { return x; });
}

double sum_of_squares(const Tensor& t) {
  if constexpr (kCuda) {
    if (on_cuda(t)) {
      const Tensor result = Tensor::empty({}, DType::f64, t.device());
      cuda::sum_of_squares(t, result);
      return result.item();
    }
  }
  return reduce(t, [](double x) { return x * x; });
}

bool all_finite(const Tensor& t) {
  if (on_cuda(t)) return std::isfinite(sum_of_squares(t));
  return reduce(t, [](double x) { return std::isfinite(x) ? 0.0 : 1.0; }) == 0.0;
}

}  // namespace linnet
