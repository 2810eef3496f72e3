#include "autograd/arithmetic.h"

#include "core/elementwise.h"
#include "core/threads.h"

namespace linnet {
namespace {

constexpr int64_t kGrain = 16384;

// to = f(a, b) element by element, in the compute type.
template <typename F>
Tensor map2(const Tensor& a, const Tensor& b, const F& f) {
  require(a.shape() == b.shape() && a.dtype() == b.dtype(), "element-wise operation on ", a.shape(),
          " ", name_of(a.dtype()), " and ", b.shape(), " ", name_of(b.dtype()));
  const Tensor to = Tensor::empty(a.shape(), a.dtype(), a.device());
  dispatch_floating(a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const T* x = a.data<T>();
    const T* y = b.data<T>();
    T* z = to.data<T>();
    parallel_for(a.elements(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        z[i] = static_cast<T>(f(static_cast<C>(x[i]), static_cast<C>(y[i])));
      }
    });
  });
  return to;
}

Tensor scaled(const Tensor& x, double factor) {
  const Tensor to = Tensor::empty(x.shape(), x.dtype(), x.device());
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto f = static_cast<Compute<T>>(factor);
    const T* in = x.data<T>();
    T* out = to.data<T>();
    parallel_for(x.elements(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        out[i] = static_cast<T>(static_cast<Compute<T>>(in[i]) * f);
      }
    });
  });
  return to;
}

}  // namespace

Variable add(const Variable& a, const Variable& b) {
  return record("add", map2(a.value(), b.value(), [](auto x, auto y) { return x + y; }), {a, b},
                [](Gradients& gradients) {
                  gradients.add(0, gradients.output());
                  gradients.add(1, gradients.output());
                });
}

Variable weighted_sum(const Variable& a, double alpha, const Variable& b, double beta) {
  Tensor y = map2(a.value(), b.value(), [alpha, beta](auto x, auto z) {
    using C = decltype(x);
    return static_cast<C>(alpha) * x + static_cast<C>(beta) * z;
  });
  return record("weighted_sum", y, {a, b}, [alpha, beta](Gradients& gradients) {
    if (gradients.wanted(0)) gradients.add(0, scaled(gradients.output(), alpha));
    if (gradients.wanted(1)) gradients.add(1, scaled(gradients.output(), beta));
  });
}

Variable scale(const Variable& x, double factor) {
  return record("scale", scaled(x.value(), factor), {x}, [factor](Gradients& gradients) {
    gradients.add(0, scaled(gradients.output(), factor));
  });
}

Variable multiply(const Variable& a, const Variable& b) {
  const auto product = [](auto x, auto y) { return x * y; };
  struct Saved {
    Tensor a, b;
  };
  return record("multiply", map2(a.value(), b.value(), product), {a, b},
                [saved = Saved{a.value(), b.value()}, product](Gradients& gradients) {
                  const Tensor& dy = gradients.output();
                  if (gradients.wanted(0)) gradients.add(0, map2(dy, saved.b, product));
                  if (gradients.wanted(1)) gradients.add(1, map2(dy, saved.a, product));
                });
}

Variable reshape(const Variable& x, const Shape& shape) {
  return record("reshape", x.value().reshape(shape), {x},
                [before = x.shape()](Gradients& gradients) {
                  gradients.add(0, gradients.output().reshape(before));
                });
}

Variable cast(const Variable& x, DType dtype) {
  if (dtype == x.dtype()) return x;
  return record("cast", x.value().to(dtype), {x}, [before = x.dtype()](Gradients& gradients) {
    gradients.add(0, gradients.output().to(before));
  });
}

Variable sum_all(const Variable& x) {
  Tensor y = Tensor::full({}, sum(x.value()), DType::f64);
  return record("sum_all", y, {x}, [shape = x.shape(), dtype = x.dtype()](Gradients& gradients) {
    gradients.add(0, Tensor::full(shape, gradients.output().item(), dtype));
  });
}

}  // namespace linnet
