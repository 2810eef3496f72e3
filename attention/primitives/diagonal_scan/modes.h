// The modes of a diagonal recurrence, how they follow from its rates, and their derivatives: pure
// functions that the CPU and the device share; internal to diagonal_scan.
//
// A = -exp(log_decay) + i frequency, step = exp(log_step), z = step A. A mode advances by
// x_t = pole x_{t-1} + gain u_t with
//
//   zoh        pole = e^z                     gain = (e^z - 1) / A
//   bilinear   pole = (1 + z/2) / (1 - z/2)   gain = step / (1 - z/2)
#pragma once

#include <cstdint>

namespace linnet::diagonal {

// The gradient of a complex number is dL/dre + i dL/dim.
struct Complex {
  double re = 0, im = 0;
};
constexpr Complex operator+(Complex a, Complex b) {
  return {a.re + b.re, a.im + b.im};
}
constexpr Complex operator-(Complex a, Complex b) {
  return {a.re - b.re, a.im - b.im};
}
constexpr Complex operator*(Complex a, Complex b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
constexpr Complex operator*(double a, Complex b) {
  return {a * b.re, a * b.im};
}
constexpr Complex conjugate(Complex a) {
  return {a.re, -a.im};
}
constexpr Complex inverse(Complex a) {
  return (1 / (a.re * a.re + a.im * a.im)) * conjugate(a);
}

struct Mode {
  Complex pole, gain;
};
// Derivatives of pole and gain with respect to step and A.
struct ModeDerivatives {
  Complex pole_step, pole_a, gain_step, gain_a;
};
struct RateGradient {
  double log_step = 0, log_decay = 0, frequency = 0;
};

// The rates of one call: log_step [H], log_decay and frequency [rows,M], rows 1 (the same for all
// channels) or H. Math has exp, cos and sin in double.
template <typename T>
struct Rates {
  int64_t H = 0, M = 0, rows = 0;
  bool bilinear = false;
  const T *log_step = nullptr, *log_decay = nullptr, *frequency = nullptr;

  constexpr int64_t at(int64_t h, int64_t n) const { return (rows == 1 ? 0 : h) * M + n; }
  template <typename Math>
  constexpr double step(int64_t h, const Math& math) const {
    return math.exp(static_cast<double>(log_step[h]));
  }
  template <typename Math>
  constexpr Complex a(int64_t h, int64_t n, const Math& math) const {
    return {-math.exp(static_cast<double>(log_decay[at(h, n)])),
            static_cast<double>(frequency[at(h, n)])};
  }

  template <typename Math>
  constexpr Mode mode(int64_t h, int64_t n, const Math& math) const {
    const double s = step(h, math);
    const Complex A = a(h, n, math), z = s * A;
    if (bilinear) {
      const Complex w = inverse(Complex{1} - 0.5 * z);
      return {(Complex{1} + 0.5 * z) * w, s * w};
    }
    const Complex pole = math.exp(z.re) * Complex{math.cos(z.im), math.sin(z.im)};
    return {pole, (pole - Complex{1}) * inverse(A)};
  }

  // Mode i of [H,M,4].
  template <typename Math>
  constexpr void put_mode(int64_t i, const Math& math, double* to) const {
    const Mode m = mode(i / M, i % M, math);
    to[4 * i] = m.pole.re;
    to[4 * i + 1] = m.pole.im;
    to[4 * i + 2] = m.gain.re;
    to[4 * i + 3] = m.gain.im;
  }

  // Gradients of a mode's rates, from those of the mode.
  template <typename Math>
  constexpr RateGradient gradient(int64_t h, int64_t n, const Mode& d, const Math& math) const {
    const double s = step(h, math);
    const Complex A = a(h, n, math);
    const Mode m = mode(h, n, math);
    ModeDerivatives by;
    if (bilinear) {
      const Complex w = inverse(Complex{1} - 0.5 * s * A), w2 = w * w;
      by = {A * w2, s * w2, w2, 0.5 * s * s * w2};
    } else {
      by = {A * m.pole, s * m.pole, m.pole, (s * m.pole - m.gain) * inverse(A)};
    }
    const Complex dstep = conjugate(by.pole_step) * d.pole + conjugate(by.gain_step) * d.gain;
    const Complex da = conjugate(by.pole_a) * d.pole + conjugate(by.gain_a) * d.gain;
    return {s * dstep.re, A.re * da.re, da.im};
  }

  // Element h of the gradient of log_step, and elements i of those of log_decay and frequency.
  // `d` [H,M,4] holds the gradients of pole and gain.
  static constexpr Mode given(const double* d, int64_t i) {
    return {{d[4 * i], d[4 * i + 1]}, {d[4 * i + 2], d[4 * i + 3]}};
  }
  template <typename Math>
  constexpr double dlog_step(int64_t h, const double* d, const Math& math) const {
    double total = 0;
    for (int64_t n = 0; n < M; ++n) total += gradient(h, n, given(d, h * M + n), math).log_step;
    return total;
  }
  template <typename Math>
  constexpr RateGradient dpole(int64_t i, const double* d, const Math& math) const {
    const int64_t n = i % M, first = rows == 1 ? 0 : i / M, end = rows == 1 ? H : first + 1;
    RateGradient total;
    for (int64_t h = first; h < end; ++h) {
      const RateGradient one = gradient(h, n, given(d, h * M + n), math);
      total.log_decay += one.log_decay;
      total.frequency += one.frequency;
    }
    return total;
  }
};

// Sizes and order of one scan. Step i of a row is token i, or, where only later tokens are read,
// the one that is i before the last.
struct Scan {
  int64_t B = 0, T = 0, H = 0, M = 0, G = 0;
  bool later = false;
  const uint8_t* mask = nullptr;      // [B,T]
  const int32_t* segments = nullptr;  // [B,T]

  constexpr int64_t token(int64_t b, int64_t i) const { return b * T + (later ? T - 1 - i : i); }
  constexpr bool valid(int64_t token) const { return mask == nullptr || mask[token] != 0; }
  // Whether a document begins with step i, but for the first of the row.
  constexpr bool begins(int64_t b, int64_t i) const {
    return i > 0 && segments != nullptr && segments[token(b, i)] != segments[token(b, i - 1)];
  }
};

}  // namespace linnet::diagonal
