// Native vectors for CPU kernels: types, loads, stores, reductions, exponential. Written with the
// compiler's vector extensions, so the same source serves AVX-512, AVX2 and anything else.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace linnet::simd {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

template <typename T>
struct Types;
template <>
struct Types<float> {
  typedef float Vector __attribute__((vector_size(kVectorBytes)));
  typedef int32_t Integer __attribute__((vector_size(kVectorBytes)));
};
template <>
struct Types<double> {
  typedef double Vector __attribute__((vector_size(kVectorBytes)));
  typedef int64_t Integer __attribute__((vector_size(kVectorBytes)));
};

template <typename T>
using Vector = typename Types<T>::Vector;
// Elements of T in one vector.
template <typename T>
inline constexpr int64_t kLanes = kVectorBytes / static_cast<int64_t>(sizeof(T));
// n rounded up to a whole number of vectors.
template <typename T>
constexpr int64_t round_up(int64_t n) {
  return (n + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

template <typename T>
inline Vector<T> load(const T* p) {
  Vector<T> v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
template <typename T>
inline void store(T* p, Vector<T> v) {
  std::memcpy(p, &v, sizeof(v));
}
// The first n elements (n < kLanes), the rest zero.
template <typename T>
inline Vector<T> load_partial(const T* p, int64_t n) {
  Vector<T> v = {};
  std::memcpy(&v, p, static_cast<size_t>(n) * sizeof(T));
  return v;
}
template <typename T>
inline void store_partial(T* p, Vector<T> v, int64_t n) {
  std::memcpy(p, &v, static_cast<size_t>(n) * sizeof(T));
}
// to[i] = from[i] for i < n: for rows of a few vectors, where calling memcpy takes half the time.
template <typename T>
inline void copy(const T* from, int64_t n, T* to) {
  int64_t i = 0;
  for (; i + kLanes<T> <= n; i += kLanes<T>) {
    store(to + i, load(from + i));
    // Keeps the compiler from making a call of it after all.
    asm volatile("" ::: "memory");
  }
  for (; i < n; ++i) to[i] = from[i];
}
template <typename T>
inline Vector<T> broadcast(T value) {
  return value - Vector<T>{};
}
// Element-wise maximum of values without NaN.
template <typename T>
inline Vector<T> maximum(Vector<T> a, Vector<T> b) {
  return a > b ? a : b;
}
// 0, 1, 2 ...
template <typename I, int... lane>
constexpr I lane_numbers(std::integer_sequence<int, lane...> /*of all lanes*/) {
  return I{lane...};
}
// Lane i of the result is lane lanes[i] of a, or of a and b one after the other. g++ has a builtin
// for lane numbers in a vector; clang, which analyses this code, has none.
template <typename V, typename I>
inline V shuffle(V a, I lanes) {
#ifdef __clang__
  V result = a;
  for (size_t i = 0; i < sizeof(V) / sizeof(a[0]); ++i) result[i] = a[lanes[i]];
  return result;
#else
  return __builtin_shuffle(a, lanes);
#endif
}
template <typename V, typename I>
inline V shuffle(V a, V b, I lanes) {
#ifdef __clang__
  constexpr size_t kCount = sizeof(V) / sizeof(a[0]);
  V result = a;
  for (size_t i = 0; i < kCount; ++i) {
    const auto lane = static_cast<size_t>(lanes[i]);
    result[i] = lane < kCount ? a[lane] : b[lane - kCount];
  }
  return result;
#else
  return __builtin_shuffle(a, b, lanes);
#endif
}

// The first n lanes, the others those of `rest`; n may be negative or too large.
template <typename T>
inline Vector<T> first_lanes(Vector<T> v, int64_t n, Vector<T> rest = Vector<T>{}) {
  using I = typename Types<T>::Integer;
  const I lane = lane_numbers<I>(std::make_integer_sequence<int, static_cast<int>(kLanes<T>)>());
  return lane < static_cast<decltype(lane[0] + 0)>(n) ? v : rest;
}

// Lanes combined pairwise, then pairs, and so on: always in the same order.
template <typename T, typename Combine>
inline T reduce(Vector<T> v, Combine combine) {
  using I = typename Types<T>::Integer;
  const I lane = lane_numbers<I>(std::make_integer_sequence<int, static_cast<int>(kLanes<T>)>());
  for (int64_t step = kLanes<T> / 2; step > 0; step /= 2) {
    v = combine(v, shuffle(v, lane ^ static_cast<decltype(lane[0] + 0)>(step)));
  }
  return v[0];
}
template <typename T>
inline T sum(Vector<T> v) {
  return reduce<T>(v, [](Vector<T> a, Vector<T> b) { return a + b; });
}
// Combines ever larger blocks of lanes of row pairs, which takes half as many operations as
// reducing kLanes rows. Overwrites rows; always in the same order.
template <typename T, int step, typename Combine, int... lane>
inline void combine_row_pairs(Vector<T>* rows, Combine combine,
                              std::integer_sequence<int, lane...> lanes) {
  using I = typename Types<T>::Integer;
  constexpr int kN = static_cast<int>(kLanes<T>);
  // Lanes of the first operand are 0..kN, of the second kN..2 kN.
  const I own = {((lane & step) != 0 ? kN + lane : lane)...};
  const I other = {((lane & step) != 0 ? kN + lane - step : lane + step)...};
#pragma GCC unroll 16
  for (int i = 0; i < kN; i += 2 * step) {
    rows[i] =
        combine(shuffle(rows[i], rows[i + step], own), shuffle(rows[i], rows[i + step], other));
  }
  if constexpr (2 * step < kN) combine_row_pairs<T, 2 * step>(rows, combine, lanes);
}
// Lane i of the result is sum(rows[i]), or max(rows[i]). Overwrite rows.
template <typename T>
inline Vector<T> row_sums(Vector<T>* rows) {
  combine_row_pairs<T, 1>(
      rows, [](Vector<T> a, Vector<T> b) { return a + b; },
      std::make_integer_sequence<int, static_cast<int>(kLanes<T>)>());
  return rows[0];
}
template <typename T>
inline Vector<T> row_maxima(Vector<T>* rows) {
  combine_row_pairs<T, 1>(rows, maximum<T>,
                          std::make_integer_sequence<int, static_cast<int>(kLanes<T>)>());
  return rows[0];
}
// Largest lane of values without NaN.
template <typename T>
inline T max(Vector<T> v) {
  return reduce<T>(v, maximum<T>);
}

// Exchanges, between rows i and i + step of a square of vectors, the blocks of `step` lanes across
// the diagonal. Lane numbers are constants, so that the compiler can choose instructions.
template <typename T, int step, int... lane>
inline void exchange_blocks(Vector<T>* rows, std::integer_sequence<int, lane...>) {
  using I = typename Types<T>::Integer;
  constexpr int kN = static_cast<int>(kLanes<T>);
  // Lane numbers of the first operand are 0..kN, of the second kN..2 kN.
  const I upper = {((lane & step) != 0 ? kN + lane - step : lane)...};
  const I lower = {((lane & step) != 0 ? kN + lane : lane + step)...};
#pragma GCC unroll 16
  for (int i = 0; i < kN; ++i) {
    if ((i & step) != 0) continue;
    const Vector<T> a = rows[i], b = rows[i + step];
    rows[i] = shuffle(a, b, upper);
    rows[i + step] = shuffle(a, b, lower);
  }
}

// to[c * to_stride + i] = from[i * from_stride + c] for i, c < kLanes: exchanges ever larger blocks
// across the diagonal, in registers.
template <typename T>
inline void transpose_square(const T* from, int64_t from_stride, T* to, int64_t to_stride) {
  constexpr int kN = static_cast<int>(kLanes<T>);
  constexpr auto kLaneNumbers = std::make_integer_sequence<int, kN>();
  Vector<T> rows[kN];
#pragma GCC unroll 16
  for (int i = 0; i < kN; ++i) rows[i] = load(from + i * from_stride);
  exchange_blocks<T, 1>(rows, kLaneNumbers);
  if constexpr (kN > 2) exchange_blocks<T, 2>(rows, kLaneNumbers);
  if constexpr (kN > 4) exchange_blocks<T, 4>(rows, kLaneNumbers);
  if constexpr (kN > 8) exchange_blocks<T, 8>(rows, kLaneNumbers);
#pragma GCC unroll 16
  for (int i = 0; i < kN; ++i) store(to + i * to_stride, rows[i]);
}

// Constants of exp(x) = 2^n * exp(r), |r| <= ln(2)/2, with exp(r) a polynomial: for float a
// Chebyshev fit of degree 6 (relative error 2e-8), for double the Taylor series to degree 13
// (4e-18).
template <typename T>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  static constexpr float kLowest = -87.33654f, kHighest = 89.0f, kRound = 0x1.8p23f;
  // ln(2) in two parts; the first has trailing zero bits, so n * kLn2High is exact.
  static constexpr float kLn2High = 0x1.62e3p-1f, kLn2Low = 0x1.2fefa40000000p-17f;
  static constexpr int kDegree = 6, kMantissaBits = 23, kBias = 127;
  static constexpr float kPolynomial[] = {
      1.0f, 1.0f, 0.5f, 0.166664153f, 0.0416663513f, 0.00837518089f, 0.00139411772f};
};
template <>
struct ExpConstants<double> {
  static constexpr double kLowest = -708.3964185, kHighest = 710.0, kRound = 0x1.8p52;
  static constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr int kDegree = 13, kMantissaBits = 52, kBias = 1023;
  static constexpr double kPolynomial[] = {1.0,
                                           1.0,
                                           1.0 / 2,
                                           1.0 / 6,
                                           1.0 / 24,
                                           1.0 / 120,
                                           1.0 / 720,
                                           1.0 / 5040,
                                           1.0 / 40320,
                                           1.0 / 362880,
                                           1.0 / 3628800,
                                           1.0 / 39916800,
                                           1.0 / 479001600,
                                           1.0 / 6227020800};
};

#if defined(__AVX512F__)
// p * 2^n for whole n, rounded once. (All lanes are chosen: g++ 12 warns of its own header where
// none are.)
inline Vector<float> scaled(Vector<float> p, Vector<float> n) {
  return (Vector<float>)_mm512_maskz_scalef_ps(__mmask16(-1), (__m512)p, (__m512)n);
}
inline Vector<double> scaled(Vector<double> p, Vector<double> n) {
  return (Vector<double>)_mm512_maskz_scalef_pd(__mmask8(-1), (__m512d)p, (__m512d)n);
}
#endif

// exp of every element: error <= 2 ulp; overflow gives infinity, results below the smallest normal
// number are 0 (as exp(-infinity) is: masked logits must not be slow), NaN stays NaN. Rounding mode
// must be to nearest.
template <typename T>
inline Vector<T> exp(Vector<T> x) {
  using V = Vector<T>;
  using C = ExpConstants<T>;
  const auto underflow = x < C::kLowest;
  x = underflow ? V{} : x;  // far below, the integers of the exponent would overflow
  x = x > C::kHighest ? broadcast<T>(C::kHighest) : x;
  // Adding and subtracting 1.5 * 2^mantissa rounds to an integer, left in the low bits.
  const V shifted = x * static_cast<T>(1.4426950408889634) + C::kRound;
  const V n = shifted - C::kRound;
  const V r = (x - n * C::kLn2High) - n * C::kLn2Low;
  V p = broadcast<T>(C::kPolynomial[C::kDegree]);
  for (int i = C::kDegree - 1; i >= 0; --i) p = p * r + C::kPolynomial[i];
#if defined(__AVX512F__)
  return underflow ? V{} : scaled(p, n);
#else
  // 2^n in two factors, so that the ends of the range are rounded once and do not overflow early.
  using I = typename Types<T>::Integer;
  const I number = (I)shifted - std::bit_cast<decltype(I{}[0] + 0)>(C::kRound);
  const I half = number >> 1;
  const V first = (V)((half + C::kBias) << C::kMantissaBits);
  const V second = (V)((number - half + C::kBias) << C::kMantissaBits);
  return underflow ? V{} : p * first * second;
#endif
}

}  // namespace linnet::simd
