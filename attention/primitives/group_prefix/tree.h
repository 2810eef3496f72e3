// Linear attention over whole groups of the nodes of a tree that follows a text, for tree
// speculation.
#pragma once

#include <span>

#include "attention/primitives/common/tree_nodes.h"
#include "attention/primitives/group_prefix/group_prefix.h"

namespace linnet {

// y [N,1,H,V] of nodes q, k [N,1,H,K], v [N,1,H,V] behind the text of `state`; the first node is at
// `position`. To the bit group_prefix() along each path, one token at a time: the sums over the
// text are read in place, and only nodes above a beginning group are added to a copy of them.
// Without recording, on the host.
Variable group_prefix_tree(const Variable& q, const Variable& k, const Variable& v,
                           const GroupPrefixOptions& options, int64_t position,
                           const TreeNodes& nodes, const GroupPrefixState& state);

// The state after the text and a path of nodes k, v from one without a parent downwards: the bits
// of group_prefix(), one token at a time.
GroupPrefixState group_prefix_after(const Variable& k, const Variable& v,
                                    const GroupPrefixOptions& options, int64_t position,
                                    std::span<const int64_t> path, const GroupPrefixState& state);

}  // namespace linnet
