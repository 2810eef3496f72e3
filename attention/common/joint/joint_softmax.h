// One softmax over several sets of keys, each attended to by itself.
#pragma once

#include "attention/primitives/listed_attention/listed_attention.h"

namespace linnet {

// y = sum_p y_p exp(L_p - L), L = log sum_p exp(L_p): what one softmax over the keys of both
// parts gives, y_p [B,T,H,V] and L_p [B,T,H] (-infinity: no key; 0 where that holds of both) being
// what each gives by itself; where exp(L_p - L) is 0, y_p may hold anything. f32 or f64, in the
// dtype of the first. Differentiable in all.
ListedAttentionResult joint_softmax(const ListedAttentionResult& a, const ListedAttentionResult& b);

}  // namespace linnet
