// Activations, with and without a bias; the gated product of SwiGLU.
#include "autograd/cuda/activation.h"

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
struct Forward {
  void* x;
  const void* bias;
  void* y;
  int64_t channels;
  Activation activation;

  template <typename T, int count>
  __device__ __forceinline__ void at(int64_t i) const {
    float values[count];
    load_vector(elements<T>(x, i), values);
    if (bias != nullptr) {
      float plus[count];
      load_repeated(elements<T>(bias, 0), channels, i, plus);
#pragma unroll
      for (int j = 0; j < count; ++j) values[j] = rounded_to<T>(values[j] + plus[j]);
      store_vector(elements<T>(x, i), values);
    }
    with_activation(activation, [&](auto constant) {
#pragma unroll
      for (int j = 0; j < count; ++j) values[j] = value_at<decltype(constant)::value>(values[j]);
    });
    store_vector(elements<T>(y, i), values);
  }
};

struct Backward {
  const void *x, *dy;
  void* dx;
  Activation activation;

  template <typename T, int count>
  __device__ __forceinline__ void at(int64_t i) const {
    float values[count], gradients[count];
    load_vector(elements<T>(x, i), values);
    load_vector(elements<T>(dy, i), gradients);
    with_activation(activation, [&](auto constant) {
#pragma unroll
      for (int j = 0; j < count; ++j) {
        gradients[j] *= derivative_at<decltype(constant)::value>(values[j]);
      }
    });
    store_vector(elements<T>(dx, i), gradients);
  }
};

struct SiluMultiply {
  const void *gate, *up;
  void* y;

  template <typename T, int count>
  __device__ __forceinline__ void at(int64_t i) const {
    float gates[count], values[count];
    load_vector(elements<T>(gate, i), gates);
    load_vector(elements<T>(up, i), values);
#pragma unroll
    for (int j = 0; j < count; ++j) values[j] *= value_at<Activation::silu>(gates[j]);
    store_vector(elements<T>(y, i), values);
  }
};

struct SiluMultiplyBackward {
  const void *gate, *up, *dy;
  void *dgate, *dup;

  template <typename T, int count>
  __device__ __forceinline__ void at(int64_t i) const {
    float gates[count], ups[count], gradients[count];
    load_vector(elements<T>(gate, i), gates);
    load_vector(elements<T>(up, i), ups);
    load_vector(elements<T>(dy, i), gradients);
#pragma unroll
    for (int j = 0; j < count; ++j) {
      const float x = gates[j];
      gates[j] = gradients[j] * ups[j] * derivative_at<Activation::silu>(x);
      ups[j] = gradients[j] * value_at<Activation::silu>(x);
    }
    store_vector(elements<T>(dgate, i), gates);
    store_vector(elements<T>(dup, i), ups);
  }
};

}  // namespace

void activation_forward(const Tensor& x, const Tensor& bias, Activation activation,
                        const Tensor& y) {
  const DType dtype = x.dtype();
  const Forward f{array_of(dtype, x), array_of(dtype, bias), array_of(dtype, y),
                  bias.defined() ? bias.elements() : 1, activation};
  for_each_vector("activation", dtype, x.elements(), are_aligned(f.x, f.y), f);
}

void activation_backward(const Tensor& x, const Tensor& dy, Activation activation,
                         const Tensor& dx) {
  const DType dtype = x.dtype();
  const Backward f{array_of(dtype, x), array_of(dtype, dy), array_of(dtype, dx), activation};
  for_each_vector("activation_backward", dtype, x.elements(), are_aligned(f.x, f.dy, f.dx), f);
}

void silu_multiply(const Tensor& gate, const Tensor& up, const Tensor& y) {
  const DType dtype = y.dtype();
  const SiluMultiply f{array_of(dtype, gate), array_of(dtype, up), array_of(dtype, y)};
  for_each_vector("silu_multiply", dtype, y.elements(), are_aligned(f.gate, f.up, f.y), f);
}

void silu_multiply_backward(const Tensor& gate, const Tensor& up, const Tensor& dy,
                            const Tensor& dgate, const Tensor& dup) {
  const DType dtype = dy.dtype();
  const SiluMultiplyBackward f{array_of(dtype, gate), array_of(dtype, up), array_of(dtype, dy),
                               array_of(dtype, dgate), array_of(dtype, dup)};
  for_each_vector("silu_multiply_backward", dtype, dy.elements(),
                  are_aligned(f.gate, f.up, f.dy, f.dgate, f.dup), f);
}

}  // namespace linnet::cuda
