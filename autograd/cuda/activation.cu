// Activations, with and without a bias; the gated product of SwiGLU.
#include "autograd/cuda/activation.h"

#include "core/cuda/for_each.h"

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

__device__ __forceinline__ float value_at(Activation activation, float x) {
  switch (activation) {
    case Activation::relu:
      return x <= 0.0f ? 0.0f : x;  // NaN stays
    case Activation::gelu:
      return 0.5f * x * (1.0f + erff(x * kInverseSqrt2));
    case Activation::gelu_tanh:
      return x * sigmoid(gelu_tanh_logit(x));
    case Activation::silu:
      return x * sigmoid(x);
    case Activation::sigmoid:
      return sigmoid(x);
    default:
      return x;
  }
}

__device__ __forceinline__ float derivative_at(Activation activation, float x) {
  switch (activation) {
    case Activation::relu:
      return x > 0.0f ? 1.0f : 0.0f;
    case Activation::gelu:
      return 0.5f * (1.0f + erff(x * kInverseSqrt2)) + x * kNormalDensity * expf(-0.5f * x * x);
    case Activation::gelu_tanh:
      return gelu_tanh_derivative(x);
    case Activation::silu: {
      const float s = sigmoid(x);
      return s * (1.0f + x * (1.0f - s));
    }
    case Activation::sigmoid: {
      const float s = sigmoid(x);
      return s * (1.0f - s);
    }
    default:
      return 1.0f;
  }
}

template <typename T>
void forward_typed(const Tensor& x, const Tensor& bias, Activation activation, const Tensor& y) {
  T* before = pointer<T>(x);
  const T* b = pointer_or_null<T>(bias);
  T* after = pointer<T>(y);
  const int64_t channels = bias.defined() ? bias.elements() : 1;
  for_each("activation", x.elements(), [=] __device__(int64_t i) {
    if (b != nullptr) store(before + i, load(before + i) + load(b + i % channels));
    store(after + i, value_at(activation, load(before + i)));
  });
}

template <typename T>
void backward_typed(const Tensor& x, const Tensor& dy, Activation activation, const Tensor& dx) {
  const T* value = pointer<T>(x);
  const T* from = pointer<T>(dy);
  T* to = pointer<T>(dx);
  for_each("activation_backward", x.elements(), [=] __device__(int64_t i) {
    store(to + i, load(from + i) * derivative_at(activation, load(value + i)));
  });
}

template <typename T>
void silu_multiply_typed(const Tensor& gate, const Tensor& up, const Tensor& y) {
  const T* g = pointer<T>(gate);
  const T* u = pointer<T>(up);
  T* to = pointer<T>(y);
  for_each("silu_multiply", y.elements(), [=] __device__(int64_t i) {
    store(to + i, value_at(Activation::silu, load(g + i)) * load(u + i));
  });
}

template <typename T>
void silu_multiply_backward_typed(const Tensor& gate, const Tensor& up, const Tensor& dy,
                                  const Tensor& dgate, const Tensor& dup) {
  const T* g = pointer<T>(gate);
  const T* u = pointer<T>(up);
  const T* d = pointer<T>(dy);
  T* dg = pointer<T>(dgate);
  T* du = pointer<T>(dup);
  for_each("silu_multiply_backward", dy.elements(), [=] __device__(int64_t i) {
    const float x = load(g + i);
    store(dg + i, load(d + i) * load(u + i) * derivative_at(Activation::silu, x));
    store(du + i, load(d + i) * value_at(Activation::silu, x));
  });
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
