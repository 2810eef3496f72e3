// One element of LARA's logits and of their gradients, as pure functions shared by the CPU and the
// device. On the CPU logits and their gradients are products of tiles instead
// (landmark_logits_cpu.h).
#pragma once

#include <cstdint>
#include <limits>

#include "attention/common/landmark_runs.h"

namespace linnet::landmark_rule {

// Sizes of a sequence [B,T,H,K] and its landmarks [B,H,C,K].
struct Sizes {
  int64_t B, T, H, C, K;
};

// Arrays of landmark_logits.
template <typename T>
struct Logits {
  Sizes n;
  const T *k, *w;
  const double* normalizer;
  const uint8_t* mask;
  T scale, half;  // half: 1/2, or 0 where |k|^2 is left out

  constexpr bool valid(int64_t b, int64_t t) const {
    return mask == nullptr || mask[b * n.T + t] != 0;
  }
  constexpr bool used(int64_t b, int64_t h, int64_t c) const {
    return normalizer[(b * n.H + h) * n.C + c] != 0;
  }
  constexpr const T* key(int64_t b, int64_t t, int64_t h) const {
    return k + ((b * n.T + t) * n.H + h) * n.K;
  }
  constexpr const T* proposal(int64_t b, int64_t h, int64_t c) const {
    return w + ((b * n.H + h) * n.C + c) * n.K;
  }
  // Element i of [B,T,H,C].
  constexpr T logit(int64_t i) const {
    const int64_t c = i % n.C, h = i / n.C % n.H, t = i / (n.C * n.H) % n.T;
    const int64_t b = i / (n.C * n.H * n.T);
    if (!used(b, h, c)) return -std::numeric_limits<T>::infinity();
    if (!valid(b, t)) return 0;
    const T *x = key(b, t, h), *y = proposal(b, h, c);
    T sum = 0;
    for (int64_t e = 0; e < n.K; ++e) sum += x[e] * (y[e] - half * x[e]);
    return scale * sum;
  }
  // Element i of dk [B,T,H,K].
  constexpr T dkey(const T* dlogits, int64_t i) const {
    const int64_t e = i % n.K, h = i / n.K % n.H, t = i / (n.K * n.H) % n.T;
    const int64_t b = i / (n.K * n.H * n.T);
    if (!valid(b, t)) return 0;
    const T* d = dlogits + ((b * n.T + t) * n.H + h) * n.C;
    T sum = 0;
    for (int64_t c = 0; c < n.C; ++c) {
      if (used(b, h, c)) sum += d[c] * (proposal(b, h, c)[e] - 2 * half * key(b, t, h)[e]);
    }
    return scale * sum;
  }
  // Element i of dw [B,H,C,K].
  constexpr T dproposal(const T* dlogits, int64_t i) const {
    const int64_t e = i % n.K, c = i / n.K % n.C, h = i / (n.K * n.C) % n.H;
    const int64_t b = i / (n.K * n.C * n.H);
    T sum = 0;
    for (int64_t t = 0; used(b, h, c) && t < n.T; ++t) {
      if (valid(b, t)) sum += dlogits[((b * n.T + t) * n.H + h) * n.C + c] * key(b, t, h)[e];
    }
    return scale * sum;
  }
};

}  // namespace linnet::landmark_rule
