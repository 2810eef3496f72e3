// Linear attention over whole groups of tokens: a token reads the sum of what earlier groups hold
// and nothing of its own group (FLASH's global part), or the sum over its whole sequence.
#pragma once

#include "autograd/variable.h"

namespace linnet {

struct GroupPrefixOptions {
  int64_t group = 256;  // tokens of a group; position p is in group p / group
  bool whole = false;   // the sum over all tokens of the document instead (noncausal)
  bool mean = false;    // divided by the number of earlier groups (not with `whole`)
  double scale = 1;
};

// Tensors may be undefined, except positions where `whole` is not set.
struct GroupPrefixContext {
  GroupPrefixOptions options;
  Tensor mask;       // u8 [B,T], 1 = valid
  Tensor segments;   // i32 [B,T]: nothing is seen across documents
  Tensor positions;  // i32 [B,T], in the document
};

// Sums of k v^T, [B,s,V] in f32 (f64 for f64), over completed groups and over all tokens; undefined
// at the beginning of a sequence.
struct GroupPrefixState {
  Variable completed, all;
};

struct GroupPrefixResult {
  Variable y;  // [B,T,V]
  GroupPrefixState state;
};

// y_t = scale q_t . sum of k_j v_j^T over j in earlier groups of the document of t; `state`
// continues the first document of a row, the one returned is that of the last. q, k [B,T,s],
// v [B,T,V]. Differentiable in all of them and the state. Masked tokens are not read and give 0.
// f64 is computed in f64, f32 and bf16 in f32. Time 2 T s V; no array that grows with T but y.
GroupPrefixResult group_prefix(const Variable& q, const Variable& k, const Variable& v,
                               const GroupPrefixContext& context,
                               const GroupPrefixState& state = {});

}  // namespace linnet
