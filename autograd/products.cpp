#include "autograd/products.h"

#include <algorithm>

#include "autograd/arithmetic.h"
#include "autograd/cuda/products.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

Transpose flipped(Transpose transpose) {
  return transpose == Transpose::no ? Transpose::yes : Transpose::no;
}

// [G,rows,columns] of a tensor of at least two dimensions.
Tensor matrices(const Tensor& x) {
  const int64_t rows = x.size(-2), columns = x.size(-1);
  int64_t count = 1;
  for (size_t d = 0; d + 2 < x.shape().rank(); ++d) count *= x.shape().sizes()[d];
  return x.reshape({count, rows, columns});
}

Tensor like(const Tensor& x) {
  return Tensor::empty(x.shape(), x.dtype(), x.device());
}

// op(a) op(b) into a tensor of that shape; all [G,.,.].
Tensor product(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
               const Shape& shape) {
  const Tensor c = Tensor::empty(shape, a.dtype(), a.device());
  if (c.elements() > 0) {
    batched_gemm(matrices(a), transpose_a, matrices(b), transpose_b, matrices(c));
  }
  return c;
}

// A product of which both operands have leading dimensions.
Variable product_of_each(const Variable& a, const Variable& b, Transpose ta, Transpose tb,
                         const Shape& shape) {
  return record("matmul", product(a.value(), ta, b.value(), tb, shape), {a, b},
                [a = a.value(), b = b.value(), ta, tb](Gradients& gradients) {
                  const Tensor& dy = gradients.output();
                  // Of C = A B: dA = dC B^T, dB = A^T dC; of a transposed operand, the transpose of
                  // that.
                  if (gradients.wanted(0)) {
                    gradients.add(0, ta == Transpose::no
                                         ? product(dy, Transpose::no, b, flipped(tb), a.shape())
                                         : product(b, tb, dy, Transpose::yes, a.shape()));
                  }
                  if (gradients.wanted(1)) {
                    gradients.add(1, tb == Transpose::no
                                         ? product(a, flipped(ta), dy, Transpose::no, b.shape())
                                         : product(dy, Transpose::yes, a, ta, b.shape()));
                  }
                });
}

// Solves (I + L) X = B in place, or with the transpose, from the last row up.
void substitute(const Tensor& lower, const Tensor& x, bool transposed) {
  if constexpr (kCuda) {
    if (on_cuda(x)) return cuda::substitute(lower, x, transposed);
  }
  const int64_t n = x.size(1), m = x.size(2);
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    // A thread has columns of its own.
    constexpr int64_t kColumns = 64;
    const int64_t parts = (m + kColumns - 1) / kColumns;
    parallel_for(x.size(0) * parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t g = item / parts, left = item % parts * kColumns;
        const int64_t columns = std::min(kColumns, m - left);
        const T* l = lower.data<T>() + g * n * n;
        T* rows = x.data<T>() + g * n * m + left;
        for (int64_t step = 1; step < n; ++step) {
          const int64_t i = transposed ? n - 1 - step : step;
          const int64_t first = transposed ? i + 1 : 0, last = transposed ? n : i;
          for (int64_t j = first; j < last; ++j) {
            const T factor = transposed ? l[j * n + i] : l[i * n + j];
            for (int64_t c = 0; c < columns; ++c) rows[i * m + c] -= factor * rows[j * m + c];
          }
        }
      }
    });
  };
  x.dtype() == DType::f64 ? run(double{}) : run(float{});
}

// Elements on and above the diagonal become 0.
void keep_below_diagonal(const Tensor& x) {
  if constexpr (kCuda) {
    if (on_cuda(x)) return cuda::keep_below_diagonal(x);
  }
  const int64_t n = x.size(1);
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, n));
    parallel_for(x.size(0) * n, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        T* from = x.data<T>() + row * n;
        std::fill(from + row % n, from + n, T(0));
      }
    });
  };
  x.dtype() == DType::f64 ? run(double{}) : run(float{});
}

}  // namespace

Variable matmul(const Variable& a, const Variable& b, Transpose transpose_a,
                Transpose transpose_b) {
  const Shape &left = a.shape(), &right = b.shape();
  const bool ta = transpose_a == Transpose::yes, tb = transpose_b == Transpose::yes;
  bool fits = left.rank() >= 2 && right.rank() >= 2 && a.dtype() == b.dtype() &&
              left[ta ? -2 : -1] == right[tb ? -1 : -2] &&
              (right.rank() == 2 || left.rank() == right.rank());
  for (size_t d = 0; fits && right.rank() > 2 && d + 2 < left.rank(); ++d) {
    fits = left.sizes()[d] == right.sizes()[d];
  }
  require(fits, "matmul: ", left, ta ? " (transposed) " : " ", name_of(a.dtype()), " times ", right,
          tb ? " (transposed) " : " ", name_of(b.dtype()));
  std::vector<int64_t> sizes = left.to_vector();
  sizes[sizes.size() - 2] = left[ta ? -1 : -2];
  sizes.back() = right[tb ? -2 : -1];
  const Shape shape(sizes);
  if (right.rank() == left.rank()) return product_of_each(a, b, transpose_a, transpose_b, shape);
  require(!ta, "matmul: of a product with one matrix for all, the first operand is not transposed");
  const Tensor y = Tensor::empty(shape, a.dtype(), a.value().device());
  gemm(a.value(), Transpose::no, b.value(), transpose_b, y);
  return record("matmul", y, {a, b},
                [a = a.value(), b = b.value(), transpose_b](Gradients& gradients) {
                  const Tensor& dy = gradients.output();
                  if (gradients.wanted(0)) {
                    const Tensor da = like(a);
                    gemm(dy, Transpose::no, b, flipped(transpose_b), da);
                    gradients.add(0, da);
                  }
                  if (gradients.wanted(1)) {
                    const Tensor db = like(b);
                    if (transpose_b == Transpose::no) {
                      gemm(a, Transpose::yes, dy, Transpose::no, db);
                    } else {
                      gemm(dy, Transpose::yes, a, Transpose::no, db);
                    }
                    gradients.add(1, db);
                  }
                });
}

Variable unit_triangular_solve(const Variable& lower, const Variable& b) {
  const Shape &triangle = lower.shape(), &right = b.shape();
  bool fits = triangle.rank() >= 2 && triangle.rank() == right.rank() &&
              triangle[-1] == triangle[-2] && triangle[-1] == right[-2] &&
              lower.dtype() == b.dtype();
  for (size_t d = 0; fits && d + 2 < right.rank(); ++d) {
    fits = triangle.sizes()[d] == right.sizes()[d];
  }
  require(fits, "unit_triangular_solve: expected L [...,n,n] and B [...,n,m] of one dtype, got ",
          triangle, " ", name_of(lower.dtype()), " and ", right, " ", name_of(b.dtype()));
  if (b.dtype() == DType::bf16) {
    return cast(unit_triangular_solve(cast(lower, DType::f32), cast(b, DType::f32)), DType::bf16);
  }
  const Tensor l = matrices(lower.value());
  const Tensor x = b.value().clone();
  substitute(l, matrices(x), false);
  return record("unit_triangular_solve", x, {lower, b},
                [l, x, shape = triangle](Gradients& gradients) {
                  // dB = (I + L)^-T dX, dL = -dB X^T below the diagonal.
                  const Tensor db = gradients.output().clone();
                  substitute(l, matrices(db), true);
                  if (gradients.wanted(0)) {
                    const Tensor dl = Tensor::empty(l.shape(), l.dtype(), l.device());
                    batched_gemm(matrices(db), Transpose::no, matrices(x), Transpose::yes, dl, -1);
                    keep_below_diagonal(dl);
                    gradients.add(0, dl.reshape(shape));
                  }
                  gradients.add(1, db);
                });
}

}  // namespace linnet
