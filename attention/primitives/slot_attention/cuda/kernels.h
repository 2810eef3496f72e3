// The steps of which slot attention on a device is made, on tensors. Internal to this folder.
//
// A slot's memory S (K~ and V~, or the sums they are made of) goes from token to token as
// S <- decay S + weight x. Sums over all slots or all channels that a step needs are kept per token
// in arrays [B,T,H,N], so that a scan over the tokens belongs to one slot or one channel, and a
// warp does it alone. Decay is 0 where a new segment begins, which ends memories and their
// gradients.
#pragma once

#include "attention/primitives/slot_attention/cuda/slot_attention.h"
#include "core/cuda/kernel.h"

namespace linnet::cuda {

// The token runs that are scanned: rows, or the spans of a table i32 [count,3] (row, begin, end).
struct SlotSequences {
  const int32_t* spans;
  int64_t count, T, H, N;
  __device__ int64_t row(int64_t n) const { return spans == nullptr ? n : spans[3 * n]; }
  __device__ int64_t begin(int64_t n) const { return spans == nullptr ? 0 : spans[3 * n + 1]; }
  __device__ int64_t end(int64_t n) const { return spans == nullptr ? T : spans[3 * n + 2]; }
  // The number of (row, t, h) among the heads of tokens.
  __device__ int64_t token(int64_t row, int64_t t, int64_t h) const {
    return (row * T + t) * H + h;
  }

  // A slot of a head of run n, of as many as slots().
  struct Slot {
    int64_t n, row, h, l;
  };
  __host__ __device__ int64_t slots() const { return count * H * N; }
  __device__ Slot slot(int64_t item) const {
    const int64_t n = item / N / H;
    return {n, row(n), item / N % H, item % N};
  }
  // Where it is in arrays [B,T,H,N].
  __device__ int64_t index(const Slot& s, int64_t t) const {
    return token(s.row, t, s.h) * N + s.l;
  }
};

// By token and slot, f32 [B,T,H,N]: alpha (exp: relative to the slot's contents after the token),
// the factor of earlier contents, and the factor by which sums are read (0: empty slot).
struct SlotWeights {
  Tensor weights, decays, factors;
};
SlotWeights slot_weights(const SlotAttentionContext& context, const SlotSequences& sequences,
                         const Tensor& logits, const Tensor& mass_in, const Tensor& mass_out);
// The read factors of a finished memory, for every token that reads it.
Tensor slot_read_factors(const SlotAttentionOptions& options, const SlotSequences& sequences,
                         const Tensor& mass, const Shape& shape);

// One scan. Null: x and the weights where nothing is written, reader where nothing is read,
// `before` where it begins with zeros, `after` where the end is not wanted.
struct SlotScan {
  SlotSequences sequences;
  DType dtype;  // of x, reader and results [B,T,H,width]
  int64_t width;
  const void *x, *reader;
  const uint8_t *x_mask, *reader_mask;
  const float *weights, *decays;
  const float* before;  // [count,H,N,width]
  float* after;
};
// products [B,T,H,N] = reader . S of every slot.
void scan_slots(const SlotScan& scan, const Tensor& products);
// out [B,T,H,width] = sum over slots of passed S; 0 where the reader is masked.
void scan_channels(const SlotScan& scan, const Tensor& passed, const Tensor& out);
// The gradient dS from the last token to the first: dS <- decay (dS + passed reader), from
// scan.before to scan.after. dx [B,T,H,width] = sum over slots of weight (dS + passed reader).
void reverse_scan_channels(const SlotScan& scan, const Tensor& passed, const Tensor& dx);
// The same for every slot: dweights = (dS + passed reader) . x, added to them if accumulate.
void reverse_scan_slots(const SlotScan& scan, const Tensor& passed, const Tensor& dweights,
                        bool accumulate);

// products -> factor times the softmax of scale factor products, with dropout; 0 where queries are
// masked.
void slot_softmax(const SlotAttentionContext& context, const Tensor& factors,
                  const Tensor& products);
// The gradients of a read. products -> scale factor dlogit; dreads (do . sums of values) -> factor
// probability, with dropout; returns the gradient of the sum of weights behind the factor.
Tensor slot_read_gradients(const SlotAttentionContext& context, const Tensor& factors,
                           const Tensor& products, const Tensor& dreads);

// dweights (and to_sums, if defined) -> dlogits. dsums f32 [count,H,N], the gradient of the sum of
// weights, goes from after the last token to before the first in place.
void slot_logit_gradients(const SlotAttentionContext& context, const SlotSequences& sequences,
                          const SlotWeights& weights, const Tensor& dweights, const Tensor& to_sums,
                          const Tensor& dsums, const Tensor& dlogits);

// The gradient of the mass of `end`, whose gradients may be undefined -> dsums, and back to that of
// `start`: in log space a normalizer moves its means too.
Tensor slot_sums_gradient(const SlotAttentionOptions& options, const SlotAttentionTensors& end,
                          const SlotAttentionTensors& dend);
void slot_mass_gradient(const SlotAttentionOptions& options, const SlotAttentionTensors& start,
                        const Tensor& dsums, const SlotAttentionTensors& dstart);
// dmass f64 of memories from to_sums of their readers.
void slot_read_mass_gradient(const SlotAttentionOptions& options, const SlotSequences& sequences,
                             const Tensor& to_sums, const Tensor& dmass);

}  // namespace linnet::cuda
