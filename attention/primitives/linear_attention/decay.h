// Decaying states inside chunks of causal linear attention. Internal to this folder.
#pragma once

#include <cstdint>

#include "attention/primitives/linear_attention/tile.h"

namespace linnet::linear_attention_detail {

// Factors of the log-decay for the tiles of one chunk; none where nothing decays. Everything is exp
// of a difference of sums that is at most 0. Sums are made in double, so that differences keep
// their digits.
template <typename T>
class ChunkDecay {
 public:
  // For tokens t ... t + n - 1 of a key head.
  ChunkDecay(const LinearAttentionInputs<T>& inputs, int64_t b, int64_t t, int64_t n,
             int64_t key_head);

  // weights[i, j] *= exp(g_{j+1} + ... + g_i): a triangle that chunked::lower_product left.
  void scale_lower(T* weights) const;
  // rows[i] *= exp(g_0 + ... + g_i), the factor at token i of a state that entered the chunk; rows
  // [n, stride].
  void scale_since_start(T* rows, int64_t stride) const { scale_rows(since_start_, rows, stride); }
  // rows[j] *= exp(g_{j+1} + ... + g_{n-1}): the factor of token j after the chunk.
  void scale_until_end(T* rows, int64_t stride) const { scale_rows(until_end_, rows, stride); }
  // elements *= exp(g_0 + ... + g_{n-1}): a state that passes through the chunk.
  void scale_state(T* elements, int64_t count) const;

 private:
  void scale_rows(const T* factors, T* rows, int64_t stride) const;

  bool active_;
  int64_t n_;
  double sums_[kChunk];  // g_0 + ... + g_i, the last one repeated
  T since_start_[kChunk], until_end_[kChunk];
};

// Gradients of the log-decay of a span: gradients[t] holds phi(k_t) . dphi(k_t) - sum over query
// heads of phi(q_t) . dphi(q_t) on entry. The loss changes with g_t as it does with the weights
// that reach over t; telescoped from the beginning of the span these are the entries before t plus
// `carried`, the inner product of the carried state with its gradient. Masked tokens get 0.
template <typename T>
void sum_decay_gradients(const Span& span, const uint8_t* key_mask, int64_t tokens,
                         int64_t key_heads, int64_t key_head, double carried, T* gradients);

// Decay per channel.

// exp of the log-decays of tokens t ... t + n - 1 of a key head, [n, kp]; 1 for masked tokens and
// in padding.
template <typename T>
void load_channel_factors(const Kernel<T>& kernel, int64_t b, int64_t t, int64_t n,
                          int64_t key_head, T* out);

// Gradients of the log-decay of tokens begin ... end - 1 of a key head, channel by channel: as
// sum_decay_gradients, with terms [end - begin, kp], telescoped from token `begin` on. `sums` [kp],
// which is overwritten, are the inner products there of the state's rows with their gradients.
template <typename T>
void store_channel_decay_gradients(const Kernel<T>& kernel, int64_t b, int64_t begin, int64_t end,
                                   int64_t key_head, const T* terms, double* sums, T* gradients);

}  // namespace linnet::linear_attention_detail
