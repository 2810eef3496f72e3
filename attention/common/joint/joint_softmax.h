// One softmax over several sets of keys, each attended to by itself.
#pragma once

#include "attention/primitives/listed_attention/listed_attention.h"

namespace linnet {

// y = sum_p y_p exp(L_p - L), L = log sum_p exp(L_p): the result of one softmax over the keys of
// both parts, from the result y_p [B,T,H,V] and the log-sum-exp L_p [B,T,H] of each part alone
// (-infinity: no key). y is 0 where neither part has a key. Where exp(L_p - L) is 0, y_p may hold
// anything, NaN included. f32 or f64, in the dtype of the first. Differentiable in all.
ListedAttentionResult joint_softmax(const ListedAttentionResult& a, const ListedAttentionResult& b);

}  // namespace linnet
