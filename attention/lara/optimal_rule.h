// One token of LARA's optimal weighting: pure functions that the CPU and the device share.
#pragma once

#include <cstdint>
#include <limits>

namespace linnet::landmark_rule {

// Rows are tokens' heads, [B,T,H,C]: `found` is l(q_i, w_c), `near` s q_c . q_i with the means q_c
// of queries. totals, relative f64 and keys [B,H,C,.] belong to landmarks: log-sum-exp of `near`
// over the tokens, relative_log_normalizer(), and landmark_keys(), whose last column is read.
template <typename T>
struct Optimal {
  int64_t tokens, H, C, width;
  const T *found, *near, *keys;
  const double *totals, *relative;
  const uint8_t* mask;

  static constexpr T kFloor = static_cast<T>(1e-8);

  constexpr bool valid(int64_t row) const { return mask == nullptr || mask[row / H] != 0; }
  // The first landmark of a row, in [B,H,C].
  constexpr int64_t first(int64_t row) const { return (row / (H * tokens) * H + row % H) * C; }
  constexpr bool used(int64_t landmark) const {
    return relative[landmark] != -std::numeric_limits<double>::infinity();
  }
  constexpr T base(int64_t landmark) const { return keys[landmark * width + width - 1]; }
  // Share of a landmark's own density in the density of all, and of a token among the tokens near
  // the landmark's mean.
  template <typename Exp>
  constexpr T share(int64_t landmark, const Exp& exp) const {
    return exp(static_cast<T>(relative[landmark]) - base(landmark));
  }
  template <typename Exp>
  constexpr T nearness(int64_t row, int64_t c, const Exp& exp) const {
    return exp(static_cast<T>(static_cast<double>(near[row * C + c]) - totals[first(row) + c]));
  }
  // Mean of f(c) over the landmarks in use.
  template <typename F>
  constexpr T mean(int64_t row, const F& f) const {
    T sum = 0, count = 0;
    for (int64_t c = 0; c < C; ++c) {
      if (!used(first(row) + c)) continue;
      sum += f(c);
      count += 1;
    }
    return count > 0 ? sum / count : T{0};
  }

  template <typename Exp, typename Log>
  constexpr void forward(int64_t row, T* out, const Exp& exp, const Log& log) const {
    const bool read = valid(row);
    const T middle = read ? mean(row, [&](int64_t c) { return nearness(row, c, exp); }) : T{0};
    for (int64_t c = 0; c < C; ++c) {
      const int64_t landmark = first(row) + c;
      out[row * C + c] = 0;
      if (!read || !used(landmark)) continue;
      const T alpha = share(landmark, exp) + nearness(row, c, exp) - middle;
      out[row * C + c] = found[row * C + c] + base(landmark) + log(alpha > kFloor ? alpha : kFloor);
    }
  }
  // dalpha and dnear of a row; no gradient passes where alpha is at its floor.
  template <typename Exp>
  constexpr void backward(int64_t row, const T* dout, T* dalpha, T* dfound, T* dnear,
                          const Exp& exp) const {
    const bool read = valid(row);
    const T middle = read ? mean(row, [&](int64_t c) { return nearness(row, c, exp); }) : T{0};
    for (int64_t c = 0; c < C; ++c) {
      const int64_t at = row * C + c, landmark = first(row) + c;
      const bool in_use = read && used(landmark);
      const T alpha = in_use ? share(landmark, exp) + nearness(row, c, exp) - middle : T{0};
      dalpha[at] = alpha > kFloor ? dout[at] / alpha : T{0};
      dfound[at] = in_use ? dout[at] : T{0};
    }
    const T less = read ? mean(row, [&](int64_t c) { return dalpha[row * C + c]; }) : T{0};
    for (int64_t c = 0; c < C; ++c) {
      const bool in_use = read && used(first(row) + c);
      dnear[row * C + c] = in_use ? (dalpha[row * C + c] - less) * nearness(row, c, exp) : T{0};
    }
  }
  // Gradients of landmark number n of [B,H,C], from the gradients of its tokens.
  template <typename Exp>
  constexpr void landmark(int64_t n, const T* dalpha, const T* dfound, const T* dnear,
                          double* dtotal, double* drelative, T* dkeys, const Exp& exp) const {
    double total = 0, shares = 0, bases = 0;
    const int64_t c = n % C, h = n / C % H, b = n / (C * H);
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t at = ((b * tokens + t) * H + h) * C + c;
      total += static_cast<double>(dnear[at]);
      shares += static_cast<double>(dalpha[at]);
      bases += static_cast<double>(dfound[at]);
    }
    shares *= used(n) ? static_cast<double>(share(n, exp)) : 0.0;
    dtotal[n] = -total;
    drelative[n] = shares;
    for (int64_t e = 0; e < width; ++e) dkeys[n * width + e] = 0;
    dkeys[n * width + width - 1] = static_cast<T>(bases - shares);
  }
};

}  // namespace linnet::landmark_rule
