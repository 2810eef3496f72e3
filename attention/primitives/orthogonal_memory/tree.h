// The read-out of LAVO by the nodes of a tree that follows a text, for tree speculation.
#pragma once

#include "attention/primitives/common/tree_nodes.h"
#include "attention/primitives/orthogonal_memory/orthogonal_memory.h"

namespace linnet {

// y [N,1,H,d] and memory_tokens [N,1] of nodes q, f [N,1,H,d] behind the text of `carry`; the carry
// of the result has, for each node, that of its path: [N,M,r], [N,M,r] and [N,2]. The context is
// that of the first node: its position, options without dropout. To the bit orthogonal_memory()
// along each path, one token at a time. Without recording, on the host. Throws Error on shapes that
// do not fit.
OrthogonalMemoryResult orthogonal_memory_tree(const Variable& q, const Variable& f,
                                              const Variable& basis,
                                              const OrthogonalMemoryCarry& carry,
                                              const OrthogonalMemoryContext& context,
                                              const TreeNodes& nodes);

}  // namespace linnet
