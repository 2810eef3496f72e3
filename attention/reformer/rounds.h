// Tokens into the places of all rounds, and what they read there back in one soft-max.
#pragma once

#include "attention/primitives/listed_attention.h"
#include "attention/reformer/chunks.h"

namespace linnet {

// x [B,T,H,K] -> [B,N,H,K], the token of every place; zeros where there is none. Differentiable.
Variable take_places(const Variable& x, const Chunks& chunks);

// y_i = sum_r y_ir exp(L_ir - L_i), L_i = log sum_r exp(L_ir), of y [B,N,H,V] and L [B,N,H] in the
// places of the rounds -> [B,T,H,V]: what one soft-max gives over the keys of all rounds, each as
// often as it is met. v_i (v [B,T,H,V]) where no round has a key, 0 for masked tokens.
// Differentiable in all.
Variable join_rounds(const ListedAttentionResult& rounds, const Variable& v, const Chunks& chunks);

}  // namespace linnet
