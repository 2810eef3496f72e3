// Causal linear attention of the nodes of a tree that follows a text, for tree speculation.
#pragma once

#include "attention/primitives/common/tree_nodes.h"
#include "attention/primitives/linear_attention/linear_attention.h"

namespace linnet {

// y [N,1,H,V] of nodes q, k, v [N,1,H,.]: each reads the text's sums `state` (undefined: nothing),
// the nodes above it and itself. To the bit linear_attention_causal() along each path, one token at
// a time: a depth-first walk keeps one state for each depth. Without recording. Undefined where
// there is no such walk: on a device, and where heads share keys.
Variable linear_attention_tree(const LinearAttentionVariables& inputs,
                               const LinearAttentionOptions& options, const TreeNodes& nodes,
                               const LinearAttentionSums& state);

}  // namespace linnet
