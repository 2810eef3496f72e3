// Softmax attention in which every query, or group of queries, has a list of the keys that it
// sees, on Variables: the base of block-sparse, hashed and clustered attention, and of mechanisms
// that put a window and summaries into one softmax (summaries are keys like others, behind the
// tokens').
#pragma once

#include "attention/primitives/listed_attention/cpu.h"
#include "autograd/dropout.h"
#include "autograd/variable.h"

namespace linnet {

// Inputs of listed attention that are not differentiable. Masks may be undefined: all valid.
struct ListedAttentionContext {
  ListedAttentionOptions options;
  // i32 [B or 1, H or 1, ceil(Tq / options.group), length]; -1: an empty place. On the device of q.
  Tensor index;
  Tensor query_mask;  // u8 [B,Tq], 1 = valid
  Tensor key_mask;    // u8 [B,Tk]
  DrawPlace place;    // names the draws of dropout
};

struct ListedAttentionVariables {
  Variable q;     // [B,Tq,H,K]
  Variable k, v;  // [B,Tk,G,K], [B,Tk,G,V]; G divides H
  Variable bias;  // optional [B or 1, H or 1, Tq, length]: added to the logits; -infinity excludes
};

struct ListedAttentionResult {
  Variable y;            // [B,Tq,H,V], in the dtype of q
  Variable log_sum_exp;  // [B,Tq,H] of the logits, f32 (f64 where q is f64); -infinity: no key seen
};

// y_i = sum_l p_il v_{index(i, l)}, p_i = softmax_l(scale q_i . k_{index(i, l)} + bias_il) over the
// places of the list of i whose key is valid; a key listed n times counts n times. Differentiable
// in every input and from both results; the index is a constant. f64 is computed in f64, f32 and
// bf16 in f32; a CUDA device has no f64. Masked queries, and queries without a key, give 0; the
// contents of masked positions change nothing. Time and memory O(B H Tq length), nothing of Tq x
// Tk. The same bits in every run. Throws Error on shapes that do not fit and on an index beyond the
// keys.
ListedAttentionResult listed_attention(const ListedAttentionVariables& inputs,
                                       const ListedAttentionContext& context);

}  // namespace linnet
