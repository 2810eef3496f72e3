// The steps of which slot attention on a device is made, on tensors. Internal to this folder.
//
// A slot's memory S (K~ and V~, or the sums they are made of) goes from token to token as
// S <- decay S + weight x. Sums over all slots or all channels that a step needs are kept per token
// in arrays [B,T,H,N], so that a scan over the tokens belongs to one slot or one channel, and a
// warp does it alone. Decay is 0 where a new segment begins, which ends memories and their
// gradients.
#pragma once

#include "attention/primitives/slot_attention/slot_attention.h"

namespace linnet::cuda {

// The token runs that are scanned: rows, or, where spans are defined (i32 [count,3]: row, begin,
// end), those.
struct SlotSequences {
  Tensor spans;
  int64_t count = 0, T = 0, H = 0, N = 0;
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

// One scan. Undefined: x and the weights where nothing is written, reader where nothing is read,
// `before` where it begins with zeros, `after` where the end is not wanted.
struct SlotScan {
  SlotSequences sequences;
  DType dtype = DType::f32;  // of x, reader and results [B,T,H,width]
  int64_t width = 0;
  Tensor x, x_mask;
  Tensor weights, decays;
  Tensor reader, reader_mask;
  Tensor before, after;  // [count,H,N,width] f32
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

// keys and values of a memory and of its gradient; undefined gradients are zero.
struct SlotStates {
  Tensor keys, values, dkeys, dvalues;
};
// dmass (f64, may be undefined) -> dsums, and back: in log space a normalizer moves its means too.
Tensor slot_sums_gradient(const SlotAttentionOptions& options, const SlotStates& end,
                          const Tensor& dmass);
void slot_mass_gradient(const SlotAttentionOptions& options, const SlotStates& start,
                        const Tensor& dsums, const Tensor& dmass);
// dmass f64 of memories from to_sums of their readers.
void slot_read_mass_gradient(const SlotAttentionOptions& options, const SlotSequences& sequences,
                             const Tensor& to_sums, const Tensor& dmass);

}  // namespace linnet::cuda
