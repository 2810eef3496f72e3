// Shared code of mixers that read the nodes of a tree in one pass: TokenMixer::forward_tree. On the
// host, and on a device softmax without a bias; the first node of a tree is behind the text.
#pragma once

#include "attention/common/group_support.h"
#include "attention/common/mixer_support.h"
#include "attention/primitives/common/tree_nodes.h"

namespace linnet {

TreeNodes tree_of(std::span<const MixerNode> nodes);

// x [N,1,...] of the nodes of a path as one sequence [1,T,...], a copy.
Variable along_path(const Variable& x, std::span<const int64_t> path);

// causal_with_cache() of the nodes of a tree; `block` is the context of the first one. The state
// after a path takes its keys and values as they are.
TreeMix tree_with_cache(const MixInput& input, std::span<const MixerNode> nodes,
                        const MixerState& state, const BlockAttentionContext& block, int64_t keep,
                        const Variable& bias = {});

// prefix_of_groups() of the nodes of a tree: group_prefix/tree.h.
TreeMix tree_of_groups(const MixInput& input, std::span<const MixerNode> nodes,
                       const MixerState& state, const GroupPrefixOptions& options);

// y with the states of all parts of a mixer after a path.
TreeMix with_states(const Variable& y, std::vector<TreeMix> parts);

}  // namespace linnet
