// Attention over a pattern of keys, by softmax or unnormalised, on Variables; and the keys and
// values that a sequence carries from one call to the next.
#pragma once

#include "attention/primitives/block_attention/cpu.h"
#include "autograd/dropout.h"
#include "autograd/variable.h"

namespace linnet {

// Inputs of attention that are not differentiable. Tensors may be undefined (see each).
struct BlockAttentionContext {
  BlockAttentionOptions options;
  // Queries and keys are of different sequences: every query of a row sees all keys of that row.
  bool cross = false;
  Tensor query_mask;  // u8 [B,Tq], 1 = valid; undefined: all
  Tensor key_mask;    // u8 [B,Tk]
  Tensor past_mask;   // u8 [B,P]
  Tensor segments;    // i32 [B,T]: tokens see only their own segment; undefined: one per row
  // i32 [B,T]: position of each token in its document; undefined: counted from place.time_offset.
  // Only that of the first token of a row is read.
  Tensor positions;
  // Names the draws of dropout.
  DrawPlace place;
  // i64 [B]: the time of each row's token 0, for draws; undefined: place.time_offset in all.
  Tensor times;
  // Column of the bias table that belongs to distance 0.
  int64_t bias_origin = 0;
};

// Differentiable inputs; past_k, past_v and bias may be undefined.
struct BlockAttentionVariables {
  Variable q;               // [B,Tq,H,K]
  Variable k, v;            // [B,Tk,G,K], [B,Tk,G,V]; G divides H
  Variable past_k, past_v;  // [B,P,G,K], [B,P,G,V]: tokens before the keys of the row's first span
  Variable bias;            // [H or 1, distances]: added to the logit at key - query + bias_origin
};

// y [B,Tq,H,V] in the dtype of q. Differentiable in every input. f64 is computed in f64, f32 and
// bf16 in f32 (saved: the inputs in that type, y, and B Tq H values); a CUDA device saves bf16 as
// it is and has no f64. Masked queries, and queries that see no valid key, give 0; the contents of
// masked positions change nothing. Throws Error on shapes that do not fit.
Variable block_attention(const BlockAttentionVariables& inputs,
                         const BlockAttentionContext& context);

// The last `keep` tokens (all: keep < 0) of [past ; current] along time, [B,P+T,...] -> [B,n,...]
// with n = min(keep, P + T): keys or values to carry. past may be undefined. Differentiable.
Variable carry_tokens(const Variable& past, const Variable& current, int64_t keep);

// The mask that belongs to carried tokens, u8 [B,n] on `device`: valid tokens of the row's last
// segment. Past ones belong to the first segment. past_mask, key_mask and segments may be
// undefined.
Tensor carry_mask(const Tensor& past_mask, const Tensor& key_mask, const Tensor& segments,
                  int64_t B, int64_t P, int64_t T, int64_t keep, Device device = {});

}  // namespace linnet
