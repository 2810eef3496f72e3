// Branch-free elementary functions that the compiler vectorises; double uses the C library. Those
// of float are always inlined, since a loop with a call stays scalar.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace linnet {

// e^x. float: relative error below 2e-7 on [-87, 88], 0 below -87.3, infinity above 88.7; NaN stays
// NaN.
[[gnu::always_inline]] inline float vector_exp(float x) {
  // NaN fails both comparisons and is clamped too: its conversion to an integer is undefined.
  const float clamped = x > -87.33654f ? (x < 88.72283f ? x : 88.72283f) : -87.33654f;
  const float n = std::nearbyint(clamped * 1.44269504f);
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float y = p * (r * r) + r + 1.0f;
  // 2^n in two factors, so that n = 128 does not overflow the exponent before it must.
  const int32_t whole = static_cast<int32_t>(n);
  const int32_t half = whole >> 1;
  const float scaled = y * std::bit_cast<float>((half + 127) << 23) *
                       std::bit_cast<float>((whole - half + 127) << 23);
  const float low = x < -87.33654f ? 0.0f : scaled;
  const float high = x > 88.72283f ? INFINITY : low;
  return x != x ? x : high;
}
inline double vector_exp(double x) {
  return std::exp(x);
}

// erf(x). float: relative error below 4e-7, never beyond 1; NaN stays NaN. x P(x^2) / Q(x^2), a
// rational fit of our own on |x| < 3.95, where erf rounds to 1.
[[gnu::always_inline]] inline float vector_erf(float x) {
  const float a = std::fabs(x);
  const float s = x * x;
  float p = 2.025900130e-6f;
  p = p * s + 2.846843563e-4f;
  p = p * s + 3.808082780e-3f;
  p = p * s + 5.287519842e-2f;
  p = p * s + 1.915487051e-1f;
  p = p * s + 1.128379107e+0f;
  float q = 3.783153807e-5f;
  q = q * s + 1.170703676e-3f;
  q = q * s + 1.505493280e-2f;
  q = q * s + 1.145589277e-1f;
  q = q * s + 5.030882955e-1f;
  q = q * s + 1.0f;
  const float y = a * p / q;  // may be NaN far outside the fit, where the next line discards it
  const float bounded = a > 3.95f ? 1.0f : (y > 1.0f ? 1.0f : y);
  return std::copysign(bounded, x);
}
inline double vector_erf(double x) {
  return std::erf(x);
}

// Sum of f(i) for i in [0, count), in C, as interleaved sums in one vector register: an order that
// depends on the build's vector width only, and rounds less than one running sum.
template <typename C, typename F>
inline C simd_sum(int64_t count, const F& f) {
  C total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < count; ++i) total += f(i);
  return total;
}

// 1 / (1 + e^-x).
template <typename T>
[[gnu::always_inline]] inline T vector_sigmoid(T x) {
  return T(1) / (T(1) + vector_exp(-x));
}

// GELU by tanh (Hendrycks and Gimpel 2016): x (1 + tanh(u)) / 2 = x sigmoid(2 u) with
// u = sqrt(2 / pi) (x + 0.044715 x^3).
template <typename T>
[[gnu::always_inline]] inline T vector_gelu_tanh(T x) {
  return x * vector_sigmoid(T(1.5957691216057308) * (x + T(0.044715) * x * x * x));
}
template <typename T>
[[gnu::always_inline]] inline T vector_gelu_tanh_derivative(T x) {
  // Beyond 30 the sigmoid is 0 or 1 in every type; its slope times x^3 must not be 0 times
  // infinity.
  const T y = x > T(30) ? T(30) : (x < T(-30) ? T(-30) : x);
  const T logit = T(1.5957691216057308) * (y + T(0.044715) * y * y * y);
  const T e = vector_exp(logit > T(0) ? -logit : logit);
  const T share = (logit > T(0) ? T(1) : e) / (T(1) + e);
  const T slope = e / ((T(1) + e) * (T(1) + e));  // share (1 - share), without its cancellation
  return share + y * slope * T(1.5957691216057308) * (T(1) + T(0.134145) * y * y);
}

}  // namespace linnet
