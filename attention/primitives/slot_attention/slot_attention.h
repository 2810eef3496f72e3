// Slot attention (ABC) on Variables: causal with a carried memory, and noncausal or cross through a
// memory that is written once. The mathematics is in cpu.h.
#pragma once

#include "attention/primitives/slot_attention/cpu.h"
#include "autograd/dropout.h"
#include "autograd/variable.h"

namespace linnet {

// Inputs of slot attention that are not differentiable. Tensors may be undefined.
struct SlotAttentionContext {
  SlotAttentionOptions options;
  // Causal only: weights are normalised when written (by slot_write_weights) and summed after that;
  // options.normalizer is then not looked at. A finished memory has no such order: there it is
  // normalised by the sum over all tokens.
  bool write_time = false;
  // With write_time only. false: a token reads its own write and nothing before it, though its
  // weights are divided by all sums so far: a mistake in released code, to reproduce its results.
  // The memory then has no keys and values.
  bool accumulate = true;
  Tensor query_mask;  // u8 [B,Tq], 1 = valid; undefined: all
  Tensor key_mask;    // u8 [B,Tk]
  Tensor segments;    // i32 [B,T]: tokens see only their own segment; undefined: one per row
  DrawPlace place;    // names the draws of dropout
};

struct SlotAttentionVariables {
  Variable q;       // [B,Tq,H,K]
  Variable k, v;    // [B,Tk,H,K], [B,Tk,H,V]
  Variable logits;  // [B,Tk,H,N], the control
  // That of values, where it is another. Causal only, with control `given` and normalizer `none`,
  // or with write_time. Slots count as used where keys are written.
  Variable value_logits = {};
};

// keys [M,H,N,K], values [M,H,N,V] in f32 (f64 where the inputs are f64), mass [M,H,N] always f64;
// see SlotAttentionState (with write_time, mass is the running sum by which weights are divided). M
// is B for carried states, the number of segments for a memory. Undefined: nothing written yet; the
// same as zero keys and values with the mass of slot_empty_mass. value_mass: the mass of values
// that are normalised at writing by logits of their own.
struct SlotMemory {
  Variable keys, values, mass;
  Variable value_mass = {};
};

struct SlotAttentionResult {
  Variable o;
  SlotMemory state;
};

// Causal self-attention: o [B,T,H,V] in the dtype of q, and the memory after the last token.
// `state` continues the first segment of every row. Differentiable in every input and in the
// memory, both ways (mass has no gradient with normalizer none). f64 is computed in f64, f32 and
// bf16 in f32 (saved for backward: the inputs in that type); a CUDA device saves bf16 as it is and
// has no f64. Masked queries give 0; the contents of masked positions change nothing. Throws Error
// on shapes that do not fit.
SlotAttentionResult slot_attention_causal(const SlotAttentionVariables& inputs,
                                          const SlotAttentionContext& context,
                                          const SlotMemory& state = {});

// The memory that all keys of every segment write (q is not looked at). Values may have width 0: so
// keys and values can be written by controls of their own, to two memories.
SlotMemory slot_attention_memory(const SlotAttentionVariables& inputs,
                                 const SlotAttentionContext& context);
// The queries' read of it (only q is looked at): o [B,Tq,H,V]. In cross-attention segments are
// undefined and memory b belongs to row b.
Variable slot_attention_read(const SlotAttentionVariables& inputs, const SlotMemory& memory,
                             const SlotAttentionContext& context);

// The mass of a slot into which nothing was written: -infinity for exp, else 0.
double slot_empty_mass(const SlotAttentionOptions& options);
// f64 like the mass: 1 for every slot that was written, 0 for empty ones.
Tensor used_slots(const Tensor& mass, const SlotAttentionOptions& options);

}  // namespace linnet
