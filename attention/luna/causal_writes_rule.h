// One element of the logits with which tokens write to Luna's causal memory: pure functions that
// the CPU and the device share.
#pragma once

#include <cstdint>

namespace linnet {

// logits [B,T,H,N] = scale p_l . x_t of every head, p [N,H,K], x [B,T,H,K]. Masked tokens (mask
// [B,T], may be null) are not read.
template <typename T>
struct CausalWrites {
  int64_t B, tokens, H, N, K;
  const T *p, *x;
  const uint8_t* mask;
  T scale;

  constexpr bool valid(int64_t token) const { return mask == nullptr || mask[token] != 0; }
  // Whether element i of [B,T,H,N] is one of a token that counts.
  constexpr bool written(int64_t i) const { return valid(i / (N * H)); }

  constexpr T logit(int64_t i) const {
    const int64_t l = i % N, row = i / N;
    const T *a = p + (l * H + row % H) * K, *b = x + row * K;
    T sum = 0;
    for (int64_t c = 0; c < K; ++c) sum += a[c] * b[c];
    return scale * sum;
  }
  // Element i of dx [B,T,H,K], from dlogits (0 for masked tokens).
  constexpr T dtoken(const T* dlogits, int64_t i) const {
    const int64_t c = i % K, row = i / K;
    if (!valid(row / H)) return 0;
    T sum = 0;
    for (int64_t l = 0; l < N; ++l) sum += dlogits[row * N + l] * p[(l * H + row % H) * K + c];
    return scale * sum;
  }
  // Element i of dp [N,H,K].
  constexpr T dmemory(const T* dlogits, int64_t i) const {
    const int64_t c = i % K, h = i / K % H, l = i / (K * H);
    T sum = 0;
    for (int64_t token = 0; token < B * tokens; ++token) {
      const int64_t row = token * H + h;
      if (valid(token)) sum += dlogits[row * N + l] * x[row * K + c];
    }
    return scale * sum;
  }
};

}  // namespace linnet
