// Decaying states: factors of tiles, gradients of the log-decay.
#include "attention/primitives/linear_attention/decay.h"

#include <algorithm>
#include <cmath>

#include "attention/primitives/common/simd.h"

namespace linnet::linear_attention_detail {

template <typename T>
ChunkDecay<T>::ChunkDecay(const LinearAttentionInputs<T>& inputs, int64_t b, int64_t t, int64_t n,
                          int64_t key_head)
    : active_(inputs.log_decay != nullptr), n_(n) {
  if (!active_) return;
  double sum = 0;
  for (int64_t i = 0; i < kChunk; ++i) {
    if (i < n && is_valid(inputs.key_mask, b, t + i, inputs.k.T)) {
      sum +=
          static_cast<double>(inputs.log_decay[(b * inputs.k.T + t + i) * inputs.k.H + key_head]);
    }
    sums_[i] = sum;
  }
  for (int64_t i = 0; i < n; ++i) {
    since_start_[i] = static_cast<T>(std::exp(sums_[i]));
    until_end_[i] = static_cast<T>(std::exp(sum - sums_[i]));
  }
}

template <typename T>
void ChunkDecay<T>::scale_lower(T* weights) const {
  if (!active_) return;
  for (int64_t i = 0; i < n_; ++i) {
    T* row = weights + i * kChunk;
    // Above the diagonal weights are zero and need no more than a finite factor.
    T exponents[kChunk];
    for (int64_t j = 0; j < kChunk; ++j) {
      exponents[j] = static_cast<T>(std::min(sums_[i] - sums_[j], 0.0));
    }
    for (int64_t j = 0; j < chunked::padded(i + 1); j += simd::kLanes<T>) {
      simd::store(row + j, simd::load(row + j) * simd::exp<T>(simd::load(exponents + j)));
    }
  }
}

template <typename T>
void ChunkDecay<T>::scale_rows(const T* factors, T* rows, int64_t stride) const {
  if (!active_) return;
  for (int64_t i = 0; i < n_; ++i) {
    for (int64_t c = 0; c < stride; ++c) rows[i * stride + c] *= factors[i];
  }
}

template <typename T>
void ChunkDecay<T>::scale_state(T* elements, int64_t count) const {
  if (!active_) return;
  for (int64_t i = 0; i < count; ++i) elements[i] *= since_start_[n_ - 1];
}

template <typename T>
void sum_decay_gradients(const Span& span, const uint8_t* key_mask, int64_t tokens,
                         int64_t key_heads, int64_t key_head, double carried, T* gradients) {
  double sum = carried;
  for (int64_t t = span.begin; t < span.end; ++t) {
    T& gradient = gradients[(span.row * tokens + t) * key_heads + key_head];
    const auto entry = static_cast<double>(gradient);
    gradient = is_valid(key_mask, span.row, t, tokens) ? static_cast<T>(sum) : T(0);
    sum += entry;
  }
}

#define LINNET_INSTANTIATE(T)                                                                  \
  template class ChunkDecay<T>;                                                                \
  template void sum_decay_gradients<T>(const Span&, const uint8_t*, int64_t, int64_t, int64_t, \
                                       double, T*);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet::linear_attention_detail
