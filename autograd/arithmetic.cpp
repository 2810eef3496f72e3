#include "autograd/arithmetic.h"

#include "autograd/cuda/arithmetic.h"
#include "core/cuda/backend.h"
#include "core/cuda/elementwise.h"
#include "core/elementwise.h"
#include "core/threads.h"

namespace linnet {
namespace {

constexpr int64_t kGrain = 16384;

// f(a, b) element by element, in the compute type, into an empty tensor like them.
template <typename F>
void map2(const Tensor& a, const Tensor& b, const Tensor& to, const F& f) {
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
}

Tensor empty_like(const Tensor& x) {
  return Tensor::empty(x.shape(), x.dtype(), x.device());
}

// For the result of an operation on both, which must be alike.
Tensor empty_like(const Tensor& a, const Tensor& b) {
  require(a.shape() == b.shape() && a.dtype() == b.dtype() && a.device() == b.device(),
          "element-wise operation on ", a.shape(), " ", name_of(a.dtype()), " and ", b.shape(), " ",
          name_of(b.dtype()));
  return empty_like(a);
}

Tensor weighted(const Tensor& a, double alpha, const Tensor& b, double beta) {
  Tensor to = empty_like(a, b);
  if constexpr (kCuda) {
    if (on_cuda(a)) {
      cuda::weighted_sum(a, alpha, b, beta, to);
      return to;
    }
  }
  map2(a, b, to, [alpha, beta](auto x, auto y) {
    using C = decltype(x);
    return static_cast<C>(alpha) * x + static_cast<C>(beta) * y;
  });
  return to;
}

Tensor scaled(const Tensor& x, double factor) {
  Tensor to = empty_like(x);
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      cuda::weighted_sum(x, factor, {}, 0, to);
      return to;
    }
  }
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

Tensor total(const Tensor& x) {
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      Tensor to = Tensor::empty({}, DType::f64, x.device());
      cuda::sum(x, to);
      return to;
    }
  }
  return Tensor::full({}, sum(x), DType::f64);
}

// A tensor whose elements all are the single element (f64) of `value`.
Tensor filled_with(const Tensor& value, const Shape& shape, DType dtype) {
  if constexpr (kCuda) {
    if (on_cuda(value)) {
      Tensor to = Tensor::empty(shape, dtype, value.device());
      cuda::broadcast(value, to);
      return to;
    }
  }
  return Tensor::full(shape, value.item(), dtype);
}

}  // namespace

Variable weighted_sum(const Variable& a, double alpha, const Variable& b, double beta) {
  return record("weighted_sum", weighted(a.value(), alpha, b.value(), beta), {a, b},
                [alpha, beta](Gradients& gradients) {
                  const Tensor& dy = gradients.output();
                  if (gradients.wanted(0)) gradients.add(0, scaled(dy, alpha));
                  if (gradients.wanted(1)) gradients.add(1, scaled(dy, beta));
                });
}

Variable scale(const Variable& x, double factor) {
  return record("scale", scaled(x.value(), factor), {x}, [factor](Gradients& gradients) {
    gradients.add(0, scaled(gradients.output(), factor));
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

Variable repeat(const Variable& x, const Shape& shape) {
  require(x.value().elements() == 1, "repeat: expected one element, got ", x.shape());
  return record("repeat", filled_with(x.value().to(DType::f64), shape, x.dtype()), {x},
                [own = x.shape(), dtype = x.dtype()](Gradients& gradients) {
                  gradients.add(0, filled_with(total(gradients.output()), own, dtype));
                });
}

Variable sum_all(const Variable& x) {
  return record("sum_all", total(x.value()), {x},
                [shape = x.shape(), dtype = x.dtype()](Gradients& gradients) {
                  gradients.add(0, filled_with(gradients.output(), shape, dtype));
                });
}

}  // namespace linnet
