// The causal convolution of the nodes of a tree that follows a text, for tree speculation.
#pragma once

#include "attention/primitives/block_attention/block_attention.h"
#include "attention/primitives/common/tree_nodes.h"

namespace linnet {

// y [N,1,H,V] of nodes x [N,1,H,V]: taps [H,count], the last of which acts on the node itself, the
// others on the nodes above it and past [1,P,H,V] (undefined: none). The context is that of the
// first node: its position and past_mask [1,P]. To the bit depthwise_conv() along each path, one
// token at a time. Without recording, on the host.
Variable depthwise_conv_tree(const Variable& x, const Variable& past, const Variable& taps,
                             const BlockAttentionContext& context, const TreeNodes& nodes);

}  // namespace linnet
