// Decaying states: factors of tiles, gradients of the log-decay.
#include "attention/primitives/linear_attention/decay.h"

#include <algorithm>
#include <cmath>

#include "attention/primitives/common/simd.h"
#include "attention/primitives/linear_attention/rows.h"

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

template <typename T>
void load_channel_factors(const Kernel<T>& kernel, int64_t b, int64_t t, int64_t n,
                          int64_t key_head, T* out) {
  const SequenceView<const T>& k = kernel.inputs.k;
  const SequenceView<const T> log_decay(kernel.inputs.log_decay, k.B, k.T, k.H, k.K);
  const int64_t width = k.K, stride = kernel.kp;
  for (int64_t i = 0; i < n; ++i) {
    T* row = out + i * stride;
    chunked::prefetch(log_decay, b, t + i, key_head);
    if (!is_valid(kernel.inputs.key_mask, b, t + i, k.T)) {
      std::fill_n(row, stride, T(1));
      continue;
    }
    const T* from = log_decay.at(b, t + i, key_head);
    for_vectors<T>(width, [&](int64_t c, int64_t lanes) {
      simd::store(row + c, simd::exp<T>(load(from + c, lanes)));
    });
    std::fill(row + simd::round_up<T>(width), row + stride, T(1));
  }
}

template <typename T>
void store_channel_decay_gradients(const Kernel<T>& kernel, int64_t b, int64_t begin, int64_t end,
                                   int64_t key_head, const T* terms, double* sums, T* gradients) {
  const SequenceView<const T>& k = kernel.inputs.k;
  for (int64_t t = begin; t < end; ++t, terms += kernel.kp) {
    T* to = gradients + ((b * k.T + t) * k.H + key_head) * k.K;
    const bool valid = is_valid(kernel.inputs.key_mask, b, t, k.T);
    for (int64_t c = 0; c < k.K; ++c) {
      to[c] = valid ? static_cast<T>(sums[c]) : T(0);
      sums[c] += static_cast<double>(terms[c]);
    }
  }
}

#define LINNET_INSTANTIATE(T)                                                                      \
  template class ChunkDecay<T>;                                                                    \
  template void sum_decay_gradients<T>(const Span&, const uint8_t*, int64_t, int64_t, int64_t,     \
                                       double, T*);                                                \
  template void load_channel_factors<T>(const Kernel<T>&, int64_t, int64_t, int64_t, int64_t, T*); \
  template void store_channel_decay_gradients<T>(const Kernel<T>&, int64_t, int64_t, int64_t,      \
                                                 int64_t, const T*, double*, T*);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet::linear_attention_detail
