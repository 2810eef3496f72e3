#include "autograd/functions.h"

#include "autograd/activation.h"
#include "autograd/cuda/functions.h"
#include "autograd/functions_rule.h"
#include "autograd/views.h"
#include "core/cuda/backend.h"
#include "core/vector_math.h"

namespace linnet {
namespace {

constexpr int64_t kGrain = 4096;

// to[i] = f(i, x[i]) in the computing type.
template <typename F>
void map_elements(const Tensor& x, const Tensor& to, const F& f) {
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* from = x.data<T>();
    T* out = to.data<T>();
    parallel_for(x.elements(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        out[i] = static_cast<T>(f(i, static_cast<Compute<T>>(from[i])));
      }
    });
  });
}

Tensor like(const Tensor& x) {
  return Tensor::empty(x.shape(), x.dtype(), x.device());
}

Tensor values(ElementFunction function, const Tensor& x) {
  const Tensor y = like(x);
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      cuda::element_values(function, x, y);
      return y;
    }
  }
  if (function == ElementFunction::exp) {
    map_elements(x, y, [](int64_t, auto value) { return vector_exp(value); });
  } else {
    map_elements(x, y, [&](int64_t, auto value) { return element_value(function, value); });
  }
  return y;
}

Tensor slopes(ElementFunction function, const Tensor& x, const Tensor& dy) {
  const Tensor dx = like(x);
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      cuda::element_gradients(function, x, dy, dx);
      return dx;
    }
  }
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* d = dy.data<T>();
    map_elements(x, dx, [&](int64_t i, auto value) {
      using C = decltype(value);
      if (function == ElementFunction::exp) return static_cast<C>(d[i]) * vector_exp(value);
      return static_cast<C>(static_cast<C>(d[i]) * element_slope(function, value));
    });
  });
  return dx;
}

Variable apply(const char* name, ElementFunction function, const Variable& x) {
  return record(name, values(function, x.value()), {x},
                [function, x = x.value()](Gradients& gradients) {
                  gradients.add(0, slopes(function, x, gradients.output()));
                });
}

// x with `value` where the mask, seen as `view` says, is 0.
Tensor filled(const Tensor& x, const Tensor& mask, const Views<1>& view, double value) {
  const Tensor y = like(x);
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      cuda::masked_fill(x, mask, view, value, y);
      return y;
    }
  }
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* from = x.data<T>();
    const T fill = static_cast<T>(static_cast<Compute<T>>(value));
    T* to = y.data<T>();
    for_runs(view, [&](int64_t first, int64_t count, const std::array<int64_t, 1>& at) {
      const uint8_t* valid = mask.data<uint8_t>() + at[0];
      for (int64_t i = 0; i < count; ++i) {
        to[first + i] = valid[i * view.step(0)] != 0 ? from[first + i] : fill;
      }
    });
  });
  return y;
}

Tensor lower(const Tensor& x, double value) {
  const Tensor y = like(x);
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      cuda::fill_above_diagonal(x, value, y);
      return y;
    }
  }
  const int64_t rows = x.size(-2), columns = x.size(-1);
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T fill = static_cast<T>(static_cast<Compute<T>>(value));
    const int64_t count = columns == 0 ? 0 : x.elements() / columns;
    parallel_for(count, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, columns)),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t row = begin; row < end; ++row) {
                     const int64_t kept = std::min(row % rows + 1, columns);
                     T* to = std::copy_n(x.data<T>() + row * columns, kept,
                                         y.data<T>() + row * columns);
                     std::fill_n(to, columns - kept, fill);
                   }
                 });
  });
  return y;
}

}  // namespace

Variable exp(const Variable& x) {
  return apply("exp", ElementFunction::exp, x);
}
Variable log(const Variable& x) {
  return apply("log", ElementFunction::log, x);
}
Variable sqrt(const Variable& x) {
  return apply("sqrt", ElementFunction::sqrt, x);
}
Variable tanh(const Variable& x) {
  return apply("tanh", ElementFunction::tanh, x);
}
Variable softplus(const Variable& x) {
  return apply("softplus", ElementFunction::softplus, x);
}
Variable sigmoid(const Variable& x) {
  return activate(x, Activation::sigmoid);
}
Variable silu(const Variable& x) {
  return activate(x, Activation::silu);
}

Variable fill_above_diagonal(const Variable& x, double value) {
  require(x.shape().rank() >= 2, "fill_above_diagonal: expected [..,n,m], got ", x.shape());
  return record("fill_above_diagonal", lower(x.value(), value), {x},
                [](Gradients& gradients) { gradients.add(0, lower(gradients.output(), 0)); });
}

Variable masked_fill(const Variable& x, const Tensor& mask, double value) {
  require(mask.dtype() == DType::u8 && mask.device() == x.value().device(),
          "masked_fill: expected a u8 mask on ", name_of(x.value().device()), ", got ",
          name_of(mask.dtype()), " on ", name_of(mask.device()));
  const Views<1> view = make_views<1>(x.shape().sizes(), {strides_in(mask.shape(), x.shape())});
  return record("masked_fill", filled(x.value(), mask, view, value), {x},
                [mask, view](Gradients& gradients) {
                  gradients.add(0, filled(gradients.output(), mask, view, 0));
                });
}

}  // namespace linnet
