// Arithmetic of two variables whose shapes broadcast.
#include "autograd/cuda/broadcast.h"
#include "autograd/arithmetic.h"
#include "autograd/broadcast_rule.h"
#include "autograd/layout.h"
#include "autograd/views.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

// to[i] = f(a[..], b[..]) for a run in which operands move by 0 or 1, which compilers vectorise, or
// by any step.
template <typename T, typename F>
void combine(const T* a, int64_t a_step, const T* b, int64_t b_step, int64_t count, T* to,
             const F& f) {
  using C = Compute<T>;
  const auto at = [](const T* x, int64_t i) { return static_cast<C>(x[i]); };
  if (a_step == 1 && b_step == 1) {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(f(at(a, i), at(b, i)));
  } else if (a_step == 1 && b_step == 0) {
    const C right = at(b, 0);
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(f(at(a, i), right));
  } else if (a_step == 0 && b_step == 1) {
    const C left = at(a, 0);
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(f(left, at(b, i)));
  } else {
    for (int64_t i = 0; i < count; ++i) {
      to[i] = static_cast<T>(f(at(a, i * a_step), at(b, i * b_step)));
    }
  }
}

Tensor combined(Arithmetic operation, const Tensor& a, const Tensor& b) {
  const char* name = name_of(operation);
  require(a.dtype() == b.dtype() && a.device() == b.device(), name, ": operands are ",
          name_of(a.dtype()), " on ", name_of(a.device()), " and ", name_of(b.dtype()), " on ",
          name_of(b.device()));
  const Shape shape = broadcast_shape(a.shape(), b.shape(), name);
  const Tensor y = Tensor::empty(shape, a.dtype(), a.device());
  const Views<2> views =
      make_views<2>(shape.sizes(), {strides_in(a.shape(), shape), strides_in(b.shape(), shape)});
  if constexpr (kCuda) {
    if (on_cuda(a)) {
      cuda::combine(operation, a, b, views, y);
      return y;
    }
  }
  dispatch_floating(a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *left = a.data<T>(), *right = b.data<T>();
    T* to = y.data<T>();
    dispatch_arithmetic(operation, [&](auto f) {
      for_runs(views, [&](int64_t first, int64_t count, const std::array<int64_t, 2>& at) {
        combine(left + at[0], views.step(0), right + at[1], views.step(1), count, to + first, f);
      });
    });
  });
  return y;
}

Tensor product(const Tensor& a, const Tensor& b) {
  return combined(Arithmetic::multiply, a, b);
}

// bf16 terms of a sum are not rounded one by one: sums of many may cancel.
Tensor as_terms(const Tensor& x, bool summed) {
  return summed && x.dtype() == DType::bf16 ? x.to(DType::f32) : x;
}

Tensor negated(const Tensor& x) {
  return combined(Arithmetic::subtract, Tensor::zeros({}, x.dtype(), x.device()), x);
}

}  // namespace

Variable add(const Variable& a, const Variable& b) {
  return record("add", combined(Arithmetic::add, a.value(), b.value()), {a, b},
                [a = a.shape(), b = b.shape()](Gradients& gradients) {
                  const Tensor& dy = gradients.output();
                  if (gradients.wanted(0)) gradients.add(0, sum_to(dy, a));
                  if (gradients.wanted(1)) gradients.add(1, sum_to(dy, b));
                });
}

Variable subtract(const Variable& a, const Variable& b) {
  return record("subtract", combined(Arithmetic::subtract, a.value(), b.value()), {a, b},
                [a = a.shape(), b = b.shape()](Gradients& gradients) {
                  const Tensor& dy = gradients.output();
                  if (gradients.wanted(0)) gradients.add(0, sum_to(dy, a));
                  if (gradients.wanted(1)) gradients.add(1, negated(sum_to(dy, b)));
                });
}

Variable multiply(const Variable& a, const Variable& b) {
  return record("multiply", product(a.value(), b.value()), {a, b},
                [a = a.value(), b = b.value()](Gradients& gradients) {
                  const Tensor& dy = gradients.output();
                  const auto gradient = [&](const Tensor& other, const Shape& shape) {
                    const bool sums = !(dy.shape() == shape);
                    const Tensor terms = product(as_terms(dy, sums), as_terms(other, sums));
                    return sum_to(terms, shape).to(dy.dtype());
                  };
                  if (gradients.wanted(0)) gradients.add(0, gradient(b, a.shape()));
                  if (gradients.wanted(1)) gradients.add(1, gradient(a, b.shape()));
                });
}

Variable dot(const Variable& a, const Variable& b) {
  require(a.shape() == b.shape() && a.shape().rank() > 0, "dot: ", a.shape(), " and ", b.shape());
  const Tensor terms = product(as_terms(a.value(), true), as_terms(b.value(), true));
  return record("dot", sum_to(terms, a.shape().with(-1, 1)).to(a.dtype()), {a, b},
                [a = a.value(), b = b.value()](Gradients& gradients) {
                  const Tensor& dy = gradients.output();
                  if (gradients.wanted(0)) gradients.add(0, product(dy, b));
                  if (gradients.wanted(1)) gradients.add(1, product(dy, a));
                });
}

Variable divide(const Variable& a, const Variable& b) {
  const auto quotient = [](const Tensor& x, const Tensor& y) {
    return combined(Arithmetic::divide, x, y);
  };
  return record("divide", quotient(a.value(), b.value()), {a, b},
                [quotient, a = a.value(), b = b.value()](Gradients& gradients) {
                  const Tensor& dy = gradients.output();
                  const bool sums = !(dy.shape() == a.shape() && dy.shape() == b.shape());
                  const Tensor by = as_terms(b, sums), d = quotient(as_terms(dy, sums), by);
                  if (gradients.wanted(0)) {
                    gradients.add(0, sum_to(d, a.shape()).to(dy.dtype()));
                  }
                  if (gradients.wanted(1)) {
                    const Tensor terms = product(d, quotient(as_terms(a, sums), by));
                    gradients.add(1, negated(sum_to(terms, b.shape())).to(dy.dtype()));
                  }
                });
}

}  // namespace linnet
