// Linear attention over whole groups of tokens: a token reads the sum over earlier groups and
// nothing of its own group, or the sum over its whole sequence. On Variables.
#pragma once

#include "autograd/variable.h"

namespace linnet {

struct GroupPrefixOptions {
  int64_t group = 256;  // tokens of a group; position p is in group p / group
  bool whole = false;   // the sum over all tokens of the document instead (noncausal)
  bool mean = false;    // divided by the number of earlier groups (not with `whole`)
  double scale = 1;
};

// Tensors may be undefined; tokens of a row then have positions 0, 1, ...
struct GroupPrefixContext {
  GroupPrefixOptions options;
  Tensor mask;       // u8 [B,T], 1 = valid
  Tensor segments;   // i32 [B,T]: nothing is seen across documents
  Tensor positions;  // i32 [B,T], in the document
};

// Sums of k v^T, [B,H,K,V] in f32 (f64 for f64), over the groups that the last token saw and over
// all tokens; undefined at the beginning of a sequence.
struct GroupPrefixState {
  Variable completed, all;
};

struct GroupPrefixResult {
  Variable y;  // [B,T,H,V]
  GroupPrefixState state;
};

// y_t = scale (sum of k_j v_j^T over j in earlier groups of the document of t)^T q_t; `state`
// continues the first document of a row, the one returned is that of the last. q, k [B,T,H,K],
// v [B,T,H,V]. Differentiable in all of them and the state. Masked tokens are not read and give 0.
// f64 is computed in f64 (on the CPU only), f32 and bf16 in f32. Time 2 T K V per head; no array
// that grows with T but y. Throws Error on shapes that do not fit.
GroupPrefixResult group_prefix(const Variable& q, const Variable& k, const Variable& v,
                               const GroupPrefixContext& context,
                               const GroupPrefixState& state = {});

}  // namespace linnet
