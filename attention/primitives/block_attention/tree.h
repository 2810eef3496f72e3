// Causal block attention of the nodes of a tree that follows a text, for tree speculation.
#pragma once

#include "attention/primitives/block_attention/block_attention.h"
#include "attention/primitives/common/tree_nodes.h"

namespace linnet {

// y [N,1,H,V] of nodes q [N,1,H,K], k [N,1,G,K], v [N,1,G,V]: at its position, behind past_k and
// past_v [1,P,G,.] (undefined: none) and the nodes above it, a node sees what the pattern shows.
// The context is that of the first node: its position, past_mask [1,P], options without dropout,
// the column of distance 0 of the bias. One pass for all: nodes share the tiles of past keys. The
// bits of block_attention() along each path, one token at a time, where tiles of 64 keys from the
// first that a node sees hold the same for all (full patterns, groups, windows of which those of
// all nodes together hold at most 64 keys), else to rounding. Without recording, on the host.
Variable block_attention_tree(const BlockAttentionVariables& inputs,
                              const BlockAttentionContext& context, const TreeNodes& nodes);

}  // namespace linnet
