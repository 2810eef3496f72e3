#include "autograd/activation.h"

#include <algorithm>
#include <array>
#include <numbers>
#include <utility>

#include "autograd/cuda/activation.h"
#include "core/cuda/backend.h"
#include "core/threads.h"
#include "core/vector_math.h"

namespace linnet {
namespace {

constexpr int64_t kGrain = 8192;

template <typename T>
struct Relu {
  [[gnu::always_inline]] static T value(T x) { return x > T(0) ? x : (x != x ? x : T(0)); }
  [[gnu::always_inline]] static T derivative(T x) { return x > T(0) ? T(1) : T(0); }
};
template <typename T>
struct Gelu {
  [[gnu::always_inline]] static T value(T x) {
    return T(0.5) * x * (T(1) + vector_erf(x * T(std::numbers::sqrt2 / 2)));
  }
  [[gnu::always_inline]] static T derivative(T x) {
    const T density = T(0.3989422804014327) * vector_exp(T(-0.5) * x * x);
    return T(0.5) * (T(1) + vector_erf(x * T(std::numbers::sqrt2 / 2))) + x * density;
  }
};
template <typename T>
struct GeluTanh {
  [[gnu::always_inline]] static T value(T x) { return vector_gelu_tanh(x); }
  [[gnu::always_inline]] static T derivative(T x) { return vector_gelu_tanh_derivative(x); }
};
template <typename T>
struct Silu {
  [[gnu::always_inline]] static T value(T x) { return x * vector_sigmoid(x); }
  [[gnu::always_inline]] static T derivative(T x) {
    const T s = vector_sigmoid(x);
    return s * (T(1) + x * (T(1) - s));
  }
};
template <typename T>
struct Sigmoid {
  [[gnu::always_inline]] static T value(T x) { return vector_sigmoid(x); }
  [[gnu::always_inline]] static T derivative(T x) {
    const T s = vector_sigmoid(x);
    return s * (T(1) - s);
  }
};

// Calls body with the function object of an activation on compute type C.
template <typename C, typename Body>
void dispatch_activation(Activation activation, const Body& body) {
  switch (activation) {
    case Activation::relu:
      return body(Relu<C>{});
    case Activation::gelu:
      return body(Gelu<C>{});
    case Activation::gelu_tanh:
      return body(GeluTanh<C>{});
    case Activation::silu:
      return body(Silu<C>{});
    case Activation::sigmoid:
      return body(Sigmoid<C>{});
    case Activation::none:
      break;
  }
  throw Error("activation: 'none' has no kernel");
}

void silu_multiply_forward(const Tensor& gate, const Tensor& up, const Tensor& y) {
  if constexpr (kCuda) {
    if (on_cuda(y)) return cuda::silu_multiply(gate, up, y);
  }
  dispatch_floating(y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const T* g = gate.data<T>();
    const T* u = up.data<T>();
    T* to = y.data<T>();
    parallel_for(y.elements(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        to[i] = static_cast<T>(Silu<C>::value(static_cast<C>(g[i])) * static_cast<C>(u[i]));
      }
    });
  });
}

void silu_multiply_backward(const Tensor& gate, const Tensor& up, const Tensor& dy,
                            const Tensor& dgate, const Tensor& dup) {
  if constexpr (kCuda) {
    if (on_cuda(dy)) return cuda::silu_multiply_backward(gate, up, dy, dgate, dup);
  }
  dispatch_floating(dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const T* g = gate.data<T>();
    const T* u = up.data<T>();
    const T* d = dy.data<T>();
    T* dg = dgate.data<T>();
    T* du = dup.data<T>();
    parallel_for(dy.elements(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const C x = static_cast<C>(g[i]);
        dg[i] =
            static_cast<T>(static_cast<C>(d[i]) * static_cast<C>(u[i]) * Silu<C>::derivative(x));
        du[i] = static_cast<T>(static_cast<C>(d[i]) * Silu<C>::value(x));
      }
    });
  });
}

}  // namespace

Activation activation_from_name(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, Activation>, 6> kNames{
      {{"none", Activation::none},
       {"relu", Activation::relu},
       {"gelu", Activation::gelu},
       {"gelu_tanh", Activation::gelu_tanh},
       {"silu", Activation::silu},
       {"sigmoid", Activation::sigmoid}}};
  for (const auto& [known, value] : kNames) {
    if (known == name) return value;
  }
  throw UsageError({ErrorCode::unknown_name, "activation"},
                   concat("unknown activation '", name,
                          "'; expected none, relu, gelu, gelu_tanh, silu or sigmoid"));
}

void activation_forward(const Tensor& x, Activation activation, const Tensor& y) {
  require(x.shape() == y.shape(), "activation: x ", x.shape(), ", y ", y.shape());
  if constexpr (kCuda) {
    if (on_cuda(x)) return cuda::activation_forward(x, {}, activation, y);
  }
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const T* from = x.data<T>();
    T* to = y.data<T>();
    dispatch_activation<C>(activation, [&](auto f) {
      parallel_for(x.elements(), kGrain, [&](int64_t begin, int64_t end) {
#pragma omp simd  // x may be y: without this the in-place form stays scalar
        for (int64_t i = begin; i < end; ++i) {
          to[i] = static_cast<T>(decltype(f)::value(static_cast<C>(from[i])));
        }
      });
    });
  });
}

void bias_activation_forward(const Tensor& x, const Tensor& bias, Activation activation,
                             const Tensor& y) {
  const int64_t channels = x.size(-1);
  require(x.shape() == y.shape() && bias.elements() == channels, "bias and activation: x ",
          x.shape(), ", bias ", bias.shape(), ", y ", y.shape());
  if (x.elements() == 0) return;
  if constexpr (kCuda) {
    if (on_cuda(x)) return cuda::activation_forward(x, bias, activation, y);
  }
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    T* before = x.data<T>();
    const T* b = bias.data<T>();
    T* after = y.data<T>();
    dispatch_activation<C>(activation, [&](auto f) {
      parallel_for(x.elements() / channels, std::max<int64_t>(1, kGrain / channels),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t row = begin; row < end; ++row) {
                       T* from = before + row * channels;
                       T* to = after + row * channels;
#pragma omp simd  // x may be y
                       for (int64_t c = 0; c < channels; ++c) {
                         from[c] = static_cast<T>(static_cast<C>(from[c]) + static_cast<C>(b[c]));
                         to[c] = static_cast<T>(decltype(f)::value(static_cast<C>(from[c])));
                       }
                     }
                   });
    });
  });
}

void activation_backward(const Tensor& x, const Tensor& dy, Activation activation,
                         const Tensor& dx) {
  require(x.shape() == dy.shape() && x.shape() == dx.shape(), "activation backward: x ", x.shape(),
          ", dy ", dy.shape(), ", dx ", dx.shape());
  if constexpr (kCuda) {
    if (on_cuda(x)) return cuda::activation_backward(x, dy, activation, dx);
  }
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const T* value = x.data<T>();
    const T* from = dy.data<T>();
    T* to = dx.data<T>();
    dispatch_activation<C>(activation, [&](auto f) {
      parallel_for(x.elements(), kGrain, [&](int64_t begin, int64_t end) {
#pragma omp simd  // dx may be dy
        for (int64_t i = begin; i < end; ++i) {
          to[i] = static_cast<T>(static_cast<C>(from[i]) *
                                 decltype(f)::derivative(static_cast<C>(value[i])));
        }
      });
    });
  });
}

Variable activate(const Variable& x, Activation activation) {
  if (activation == Activation::none) return x;
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.value().device());
  activation_forward(x.value(), activation, y);
  return record("activate", y, {x}, [x = x.value(), activation](Gradients& gradients) {
    const Tensor dx = Tensor::empty(x.shape(), x.dtype(), x.device());
    activation_backward(x, gradients.output(), activation, dx);
    gradients.add(0, dx);
  });
}

Variable silu_multiply(const Variable& gate, const Variable& up) {
  require(gate.shape() == up.shape() && gate.dtype() == up.dtype(), "silu_multiply: gate ",
          gate.shape(), ", up ", up.shape());
  const Tensor y = Tensor::empty(gate.shape(), gate.dtype(), gate.value().device());
  silu_multiply_forward(gate.value(), up.value(), y);
  struct Saved {
    Tensor gate, up;
  };
  return record("silu_multiply", y, {gate, up},
                [saved = Saved{gate.value(), up.value()}](Gradients& gradients) {
                  const Tensor& dy = gradients.output();
                  const Tensor dgate = Tensor::empty(dy.shape(), dy.dtype(), dy.device());
                  const Tensor dup = Tensor::empty(dy.shape(), dy.dtype(), dy.device());
                  silu_multiply_backward(saved.gate, saved.up, dy, dgate, dup);
                  gradients.add(0, dgate);
                  gradients.add(1, dup);
                });
}

}  // namespace linnet
