// Products of small matrices and their inverse by iteration, on Variables.
#include "attention/primitives/matrices/matrices.h"

#include <algorithm>

#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/fill_elements.h"
#include "attention/primitives/matrices/cuda/matrices.h"
#include "attention/primitives/matrices/matrix_rule.h"
#include "core/cuda/backend.h"
#include "core/elementwise.h"
#include "core/threads.h"

namespace linnet {
namespace {

using binding::dispatch;
using binding::empty_like;

constexpr int64_t kGrain = 4096;

// y = value I - x for every matrix.
void subtract_from_identity(double value, const Tensor& x, const Tensor& y) {
  if constexpr (kCuda) {
    if (on_device(y)) return cuda::subtract_from_identity(value, x, y);
  }
  dispatch(y.dtype(), [&](auto zero) {
    using Number = decltype(zero);
    const int64_t p = y.size(1);
    const Number* from = x.data<Number>();
    Number* to = y.data<Number>();
    parallel_for(y.size(0) * p, std::max<int64_t>(1, kGrain / p), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        for (int64_t i = row * p; i < (row + 1) * p; ++i) to[i] = -from[i];
        to[row * p + row % p] += static_cast<Number>(value);
      }
    });
  });
}

// y += value I for every matrix.
void add_identity(double value, const Tensor& y) {
  if constexpr (kCuda) {
    if (on_device(y)) return cuda::add_identity(value, y);
  }
  dispatch(y.dtype(), [&](auto zero) {
    using Number = decltype(zero);
    const int64_t p = y.size(1);
    Number* to = y.data<Number>();
    for (int64_t row = 0; row < y.size(0) * p; ++row) {
      to[row * p + row % p] += static_cast<Number>(value);
    }
  });
}

// The first iterate and its gradient. `sums` [G,p] are those of columns, `places` i64 the columns
// with the largest, one a norm.
struct Start {
  Tensor a, sums, places;

  template <typename T>
  matrix_rule::Start<T> rule() const {
    return {a.size(1), sums.elements() / places.elements(), a.data<T>()};
  }
};

Start start_of(const Tensor& a, InverseNorm norm) {
  const int64_t norms = norm == InverseNorm::matrix ? a.size(0) : 1;
  const Start start{a, Tensor::empty({a.size(0), a.size(1)}, a.dtype(), a.device()),
                    Tensor::empty({norms}, DType::i64, a.device())};
  if constexpr (kCuda) {
    if (on_device(a)) {
      cuda::inverse_norms(a, start.sums, start.places);
      return start;
    }
  }
  dispatch(a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto rule = start.rule<T>();
    fill_elements<T>(start.sums, kGrain, [&](int64_t i) { return rule.column_sum(i); });
    fill_elements<int64_t>(start.places, kGrain, [&, sums = start.sums.data<T>()](int64_t n) {
      return rule.largest(sums, n);
    });
  });
  return start;
}

Tensor first_iterate(const Start& start) {
  const Tensor z = empty_like(start.a);
  if constexpr (kCuda) {
    if (on_device(z)) {
      cuda::inverse_start(start.a, start.sums, start.places, z);
      return z;
    }
  }
  dispatch(z.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto rule = start.rule<T>();
    const T* sums = start.sums.data<T>();
    const int64_t* places = start.places.data<int64_t>();
    fill_elements<T>(z, kGrain, [&](int64_t i) { return rule.first(sums, places, i); });
  });
  return z;
}

// The term of dA from the gradient of the first iterate.
Tensor first_gradient(const Start& start, const Tensor& dz) {
  const Tensor da = empty_like(start.a), columns = empty_like(start.sums);
  const Tensor products = Tensor::empty(start.places.shape(), dz.dtype(), dz.device());
  if constexpr (kCuda) {
    if (on_device(dz)) {
      cuda::inverse_start_backward(start.a, start.sums, start.places, dz, columns, products, da);
      return da;
    }
  }
  dispatch(dz.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto rule = start.rule<T>();
    const T *from = dz.data<T>(), *sums = start.sums.data<T>();
    const int64_t* places = start.places.data<int64_t>();
    const T *of_columns = columns.data<T>(), *of_norms = products.data<T>();
    fill_elements<T>(columns, kGrain, [&](int64_t i) { return rule.column_products(from, i); });
    fill_elements<T>(products, kGrain, [&](int64_t n) { return rule.sum_of_norm(of_columns, n); });
    fill_elements<T>(da, kGrain,
                     [&](int64_t i) { return rule.gradient(sums, places, of_norms, from, i); });
  });
  return da;
}

// The factors of one iteration: X = A Z, Y_1 = 7 I - X, Y_2 = 15 I - X Y_1, Y_3 = 13 I - X Y_2.
struct Factors {
  Tensor x, y1, y2, y3;

  explicit Factors(const Tensor& a)
      : x(empty_like(a)), y1(empty_like(a)), y2(empty_like(a)), y3(empty_like(a)) {}
  void set(const Tensor& a, const Tensor& z) const {
    multiply_matrices(a, Transpose::no, z, Transpose::no, x);
    subtract_from_identity(7, x, y1);
    multiply_matrices(x, Transpose::no, y1, Transpose::no, y2, -1);
    add_identity(15, y2);
    multiply_matrices(x, Transpose::no, y2, Transpose::no, y3, -1);
    add_identity(13, y3);
  }
};

}  // namespace

void multiply_matrices(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb,
                       const Tensor& c, double alpha, Write write) {
  if (on_device(c)) {
    return batched_gemm(a, ta, b, tb, c, alpha, write == Write::accumulate ? 1 : 0);
  }
  require(a.shape().rank() == 3 && b.shape().rank() == 3 && c.shape().rank() == 3,
          "multiply_matrices: expected three tensors [G, rows, columns], got ", a.shape(), ", ",
          b.shape(), ", ", c.shape());
  const bool transposed_a = ta == Transpose::yes, transposed_b = tb == Transpose::yes;
  const int64_t G = c.size(0), m = c.size(1), n = c.size(2), k = a.size(transposed_a ? 1 : 2);
  require(a.size(0) == G && b.size(0) == G && a.size(transposed_a ? 2 : 1) == m &&
              b.size(transposed_b ? 2 : 1) == k && b.size(transposed_b ? 1 : 2) == n,
          "multiply_matrices: ", a.shape(), transposed_a ? " (transposed)" : "", " times ",
          b.shape(), transposed_b ? " (transposed)" : "", " is not ", c.shape());
  dispatch(c.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *left = a.data<T>(), *right = b.data<T>();
    T* to = c.data<T>();
    parallel_for(G, 1, [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) {
        tile_gemm<T>(m, n, k, static_cast<T>(alpha), {left + g * m * k, a.size(2), transposed_a},
                     {right + g * k * n, b.size(2), transposed_b}, write, to + g * m * n, n);
      }
    });
  });
}

Tensor unit_values(int64_t B, int64_t n, int64_t H, DType dtype, Device device) {
  const Tensor units = Tensor::empty({B, n, H, n}, dtype, device);
  if constexpr (kCuda) {
    if (on_device(units)) {
      cuda::unit_values(units);
      return units;
    }
  }
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    fill_elements<T>(units, kGrain,
                     [&](int64_t i) { return matrix_rule::is_unit(i, n, H) ? T{1} : T{0}; });
  });
  return units;
}

Variable iterated_inverse(const Variable& a, int64_t steps, InverseNorm norm) {
  const Tensor& matrix = a.value();
  require(matrix.shape().rank() == 3 && matrix.size(1) == matrix.size(2),
          "iterated_inverse: expected square matrices [G,p,p], got ", matrix.shape());
  if (matrix.elements() == 0) return a;
  const Start start = start_of(matrix, norm);
  const bool recorded = needs_grad({a});
  std::vector<Tensor> iterates;
  Tensor z = first_iterate(start);
  {
    const Factors factors(matrix);
    for (int64_t step = 0; step < steps; ++step) {
      if (recorded) iterates.push_back(z);
      factors.set(matrix, z);
      const Tensor next = empty_like(z);
      multiply_matrices(z, Transpose::no, factors.y3, Transpose::no, next, 0.25);
      z = next;
    }
  }
  return record("iterated_inverse", z, {a}, [start, iterates](Gradients& gradients) {
    const Tensor& a = start.a;
    Tensor dz = gradients.output();
    const Tensor da = Tensor::zeros(a.shape(), a.dtype(), a.device());
    const Factors f(a);
    const Tensor dy = empty_like(a), first = empty_like(a), second = empty_like(a),
                 dx = empty_like(a);
    constexpr auto kPlain = Transpose::no, kTransposed = Transpose::yes;
    for (auto z = iterates.rbegin(); z != iterates.rend(); ++z) {
      f.set(a, *z);
      // Z' = Z Y_3 / 4; the gradients of Y_2 and Y_1 are -second and -first.
      multiply_matrices(*z, kTransposed, dz, kPlain, dy, 0.25);
      multiply_matrices(f.x, kTransposed, dy, kPlain, second);
      multiply_matrices(f.x, kTransposed, second, kPlain, first, -1);
      multiply_matrices(dy, kPlain, f.y2, kTransposed, dx, -1);
      multiply_matrices(second, kPlain, f.y1, kTransposed, dx, 1, Write::accumulate);
      add_into(dx, first);
      const Tensor dbefore = empty_like(a);
      multiply_matrices(dz, kPlain, f.y3, kTransposed, dbefore, 0.25);
      multiply_matrices(a, kTransposed, dx, kPlain, dbefore, 1, Write::accumulate);
      multiply_matrices(dx, kPlain, *z, kTransposed, da, 1, Write::accumulate);
      dz = dbefore;
    }
    add_into(da, first_gradient(start, dz));
    gradients.add(0, da);
  });
}

}  // namespace linnet
