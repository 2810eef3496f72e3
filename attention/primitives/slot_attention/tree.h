// Causal slot attention of the nodes of a tree that follows a text, for tree speculation.
#pragma once

#include "attention/primitives/common/tree_nodes.h"
#include "attention/primitives/slot_attention/slot_attention.h"

namespace linnet {

// o [N,1,H,V] of nodes, inputs [N,1,H,.]: each reads the memory of the text, what the nodes above
// it wrote and its own write. Without dropout. To the bit slot_attention_causal() along each path,
// one token at a time: a depth-first walk keeps one memory for each depth. Without recording, on
// the host. Throws Error on shapes that do not fit.
Variable slot_attention_tree(const SlotAttentionVariables& inputs,
                             const SlotAttentionContext& context, const TreeNodes& nodes,
                             const SlotMemory& state);

}  // namespace linnet
