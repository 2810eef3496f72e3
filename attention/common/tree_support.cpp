#include "attention/common/tree_support.h"

#include <cstring>

#include "attention/primitives/block_attention/tree.h"
#include "attention/primitives/group_prefix/tree.h"

namespace linnet {

TreeNodes tree_of(std::span<const MixerNode> nodes) {
  std::vector<int64_t> parents;
  for (const MixerNode& node : nodes) parents.push_back(node.parent);
  return TreeNodes(parents);
}

Variable along_path(const Variable& x, std::span<const int64_t> path) {
  const Tensor rows = Tensor::empty(x.shape().with(0, 1).with(1, std::ssize(path)), x.dtype());
  const size_t bytes = rows.bytes() / path.size();
  for (size_t t = 0; t < path.size(); ++t) {
    std::memcpy(static_cast<char*>(rows.raw()) + t * bytes,
                static_cast<const char*>(x.value().raw()) + static_cast<size_t>(path[t]) * bytes,
                bytes);
  }
  return Variable(rows);
}

TreeMix tree_with_cache(const MixInput& input, std::span<const MixerNode> nodes,
                        const MixerState& state, const BlockAttentionContext& block, int64_t keep,
                        const Variable& bias) {
  BlockAttentionContext with_past = block;
  with_past.past_mask = mask_from_state(state, "valid");
  const Variable y =
      block_attention_tree({input.q, input.k, input.v, carried(state, "k", input.k.dtype()),
                            carried(state, "v", input.v.dtype()), bias},
                           with_past, tree_of(nodes));
  return {y, [k = input.k, v = input.v, context = nodes[0].context, state,
              keep](std::span<const int64_t> path) {
            return carry_keys({{}, along_path(k, path), along_path(v, path), {}, {}}, context,
                              state, keep);
          }};
}

TreeMix tree_of_groups(const MixInput& input, std::span<const MixerNode> nodes,
                       const MixerState& state, const GroupPrefixOptions& options) {
  const MixerContext& first = nodes[0].context;
  const int64_t position =
      first.positions.defined() ? first.positions.data<int32_t>()[0] : first.place.time_offset;
  const DType dtype = sum_dtype(input.v.dtype());
  const GroupPrefixState sums{carried(state, "completed", dtype), carried(state, "all", dtype)};
  const Variable y =
      group_prefix_tree(input.q, input.k, input.v, options, position, tree_of(nodes), sums);
  return {y, [k = input.k, v = input.v, options, position, sums](std::span<const int64_t> path) {
            const GroupPrefixState after = group_prefix_after(k, v, options, position, path, sums);
            return MixerState{{"completed", after.completed}, {"all", after.all}};
          }};
}

TreeMix with_states(const Variable& y, std::vector<TreeMix> parts) {
  return {y, [parts = std::move(parts)](std::span<const int64_t> path) {
            MixerState after;
            for (const TreeMix& part : parts) after.merge(part.state_after(path));
            return after;
          }};
}

}  // namespace linnet
