// Causal block attention of the nodes of a tree that follows a text, for tree speculation.
#pragma once

#include "attention/primitives/block_attention/block_attention.h"
#include "attention/primitives/common/tree_nodes.h"

namespace linnet {

// y [N,1,H,V] of nodes q [N,1,H,K], k [N,1,G,K], v [N,1,G,V]: at its position, behind past_k and
// past_v [1,P,G,.] (undefined: none) and the nodes above it, a node sees what the pattern shows.
// The context is that of the first node: its position, past_mask [1,P], options without dropout,
// the column of distance 0 of the bias. To the bit block_attention() along each path, one token at
// a time: nodes share tiles of 64 keys where these would hold the same keys, so that there is one
// pass for all (full patterns, groups, windows of which those of all nodes together hold at most 64
// keys) or one for each depth (wider windows). Without recording, on the host.
Variable block_attention_tree(const BlockAttentionVariables& inputs,
                              const BlockAttentionContext& context, const TreeNodes& nodes);

}  // namespace linnet
