// Activations, with and without a bias; the gated product of SwiGLU.
#include "autograd/cuda/activation.h"

#include "core/cuda/for_each.h"
#include "core/cuda/vectors.h"

namespace linnet::cuda {
namespace {

constexpr float kInverseSqrt2 = 0.70710678f;
constexpr float kNormalDensity = 0.39894228f;  // 1 / sqrt(2 pi)
constexpr float kGeluTanh = 1.5957691f;        // 2 sqrt(2 / pi)

__device__ __forceinline__ float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

// As vector_gelu_tanh and its derivative in core/vector_math.h.
__device__ __forceinline__ float gelu_tanh_logit(float x) {
  return kGeluTanh * (x + 0.044715f * x * x * x);
}
__device__ __forceinline__ float gelu_tanh_derivative(float x) {
  const float y = fminf(fmaxf(x, -30.0f), 30.0f);
  const float logit = gelu_tanh_logit(y), e = expf(-fabsf(logit));
  const float share = (logit > 0.0f ? 1.0f : e) / (1.0f + e);
  const float slope = e / ((1.0f + e) * (1.0f + e));
  const float derivative = share + y * slope * kGeluTanh * (1.0f + 0.134145f * y * y);
  return x != x ? x : derivative;  // fminf and fmaxf drop NaN
}

template <Activation activation>
__device__ __forceinline__ float value_at(float x) {
  if constexpr (activation == Activation::relu) return x <= 0.0f ? 0.0f : x;  // NaN stays
  if constexpr (activation == Activation::gelu) {
    return 0.5f * x * (1.0f + erff(x * kInverseSqrt2));
  }
  if constexpr (activation == Activation::gelu_tanh) return x * sigmoid(gelu_tanh_logit(x));
  if constexpr (activation == Activation::silu) return x * sigmoid(x);
  if constexpr (activation == Activation::sigmoid) return sigmoid(x);
  return x;
}

template <Activation activation>
__device__ __forceinline__ float derivative_at(float x) {
  if constexpr (activation == Activation::relu) return x > 0.0f ? 1.0f : 0.0f;
  if constexpr (activation == Activation::gelu) {
    return 0.5f * (1.0f + erff(x * kInverseSqrt2)) + x * kNormalDensity * expf(-0.5f * x * x);
  }
  if constexpr (activation == Activation::gelu_tanh) return gelu_tanh_derivative(x);
  if constexpr (activation == Activation::silu) {
    const float s = sigmoid(x);
    return s * (1.0f + x * (1.0f - s));
  }
  if constexpr (activation == Activation::sigmoid) {
    const float s = sigmoid(x);
    return s * (1.0f - s);
  }
  return 1.0f;
}

// Calls body(constant) with the activation as a constant: one choice for all elements of a thread.
template <typename Body>
__device__ __forceinline__ void with_activation(Activation activation, const Body& body) {
  switch (activation) {
    case Activation::relu:
      return body(std::integral_constant<Activation, Activation::relu>{});
    case Activation::gelu:
      return body(std::integral_constant<Activation, Activation::gelu>{});
    case Activation::gelu_tanh:
      return body(std::integral_constant<Activation, Activation::gelu_tanh>{});
    case Activation::silu:
      return body(std::integral_constant<Activation, Activation::silu>{});
    case Activation::sigmoid:
      return body(std::integral_constant<Activation, Activation::sigmoid>{});
    default:
      return body(std::integral_constant<Activation, Activation::none>{});
  }
}

// As an element of type T keeps it.
template <typename T>
__device__ __forceinline__ float rounded_to(float value) {
  T kept;
  store(&kept, value);
  return load(&kept);
}

// The activation of x, to which the bias, unless it is null, is added before.
template <typename T>
struct Forward {
  T* x;
  const T* bias;
  T* y;
  int64_t channels;
  Activation activation;

  template <int count>
  __device__ __forceinline__ void at(int64_t i) const {
    float values[count];
    load_vector(x + i, values);
    if (bias != nullptr) {
      int64_t channel = i % channels;
#pragma unroll
      for (int j = 0; j < count; ++j) {
        values[j] = rounded_to<T>(values[j] + load(bias + channel));
        if (++channel == channels) channel = 0;
      }
      store_vector(x + i, values);
    }
    with_activation(activation, [&](auto constant) {
#pragma unroll
      for (int j = 0; j < count; ++j) values[j] = value_at<decltype(constant)::value>(values[j]);
    });
    store_vector(y + i, values);
  }
};

template <typename T>
void forward_typed(const Tensor& x, const Tensor& bias, Activation activation, const Tensor& y) {
  const Forward<T> f{pointer<T>(x), pointer_or_null<T>(bias), pointer<T>(y),
                     bias.defined() ? bias.elements() : 1, activation};
  for_each_vector("activation", x.elements(), f, f.x, f.y);
}

template <typename T>
struct Backward {
  const T *x, *dy;
  T* dx;
  Activation activation;

  template <int count>
  __device__ __forceinline__ void at(int64_t i) const {
    float values[count], gradients[count];
    load_vector(x + i, values);
    load_vector(dy + i, gradients);
    with_activation(activation, [&](auto constant) {
#pragma unroll
      for (int j = 0; j < count; ++j) {
        gradients[j] *= derivative_at<decltype(constant)::value>(values[j]);
      }
    });
    store_vector(dx + i, gradients);
  }
};

template <typename T>
void backward_typed(const Tensor& x, const Tensor& dy, Activation activation, const Tensor& dx) {
  const Backward<T> f{pointer<T>(x), pointer<T>(dy), pointer<T>(dx), activation};
  for_each_vector("activation_backward", x.elements(), f, f.x, f.dy, f.dx);
}

template <typename T>
struct SiluMultiply {
  const T *gate, *up;
  T* y;

  template <int count>
  __device__ __forceinline__ void at(int64_t i) const {
    float gates[count], values[count];
    load_vector(gate + i, gates);
    load_vector(up + i, values);
#pragma unroll
    for (int j = 0; j < count; ++j) values[j] *= value_at<Activation::silu>(gates[j]);
    store_vector(y + i, values);
  }
};

template <typename T>
void silu_multiply_typed(const Tensor& gate, const Tensor& up, const Tensor& y) {
  const SiluMultiply<T> f{pointer<T>(gate), pointer<T>(up), pointer<T>(y)};
  for_each_vector("silu_multiply", y.elements(), f, f.gate, f.up, f.y);
}

template <typename T>
struct SiluMultiplyBackward {
  const T *gate, *up, *dy;
  T *dgate, *dup;

  template <int count>
  __device__ __forceinline__ void at(int64_t i) const {
    float gates[count], ups[count], gradients[count];
    load_vector(gate + i, gates);
    load_vector(up + i, ups);
    load_vector(dy + i, gradients);
#pragma unroll
    for (int j = 0; j < count; ++j) {
      const float x = gates[j];
      gates[j] = gradients[j] * ups[j] * derivative_at<Activation::silu>(x);
      ups[j] = gradients[j] * value_at<Activation::silu>(x);
    }
    store_vector(dgate + i, gates);
    store_vector(dup + i, ups);
  }
};

template <typename T>
void silu_multiply_backward_typed(const Tensor& gate, const Tensor& up, const Tensor& dy,
                                  const Tensor& dgate, const Tensor& dup) {
  const SiluMultiplyBackward<T> f{pointer<T>(gate), pointer<T>(up), pointer<T>(dy),
                                  pointer<T>(dgate), pointer<T>(dup)};
  for_each_vector("silu_multiply_backward", dy.elements(), f, f.gate, f.up, f.dy, f.dgate, f.dup);
}

}  // namespace

void activation_forward(const Tensor& x, const Tensor& bias, Activation activation,
                        const Tensor& y) {
  dispatch(x.dtype(), [&](auto zero) { forward_typed<decltype(zero)>(x, bias, activation, y); });
}

void activation_backward(const Tensor& x, const Tensor& dy, Activation activation,
                         const Tensor& dx) {
  dispatch(x.dtype(), [&](auto zero) { backward_typed<decltype(zero)>(x, dy, activation, dx); });
}

void silu_multiply(const Tensor& gate, const Tensor& up, const Tensor& y) {
  dispatch(y.dtype(), [&](auto zero) { silu_multiply_typed<decltype(zero)>(gate, up, y); });
}

void silu_multiply_backward(const Tensor& gate, const Tensor& up, const Tensor& dy,
                            const Tensor& dgate, const Tensor& dup) {
  dispatch(dy.dtype(), [&](auto zero) {
    silu_multiply_backward_typed<decltype(zero)>(gate, up, dy, dgate, dup);
  });
}

}  // namespace linnet::cuda
