#include "attention/common/tree_support.h"

#include <cstring>

#include "attention/common/joint/joint_softmax.h"
#include "attention/common/joint/key_lists.h"
#include "attention/primitives/block_attention/pattern.h"
#include "attention/primitives/block_attention/tree.h"
#include "attention/primitives/group_prefix/tree.h"
#include "autograd/arithmetic.h"
#include "autograd/layout.h"
#include "core/cuda/backend.h"

namespace linnet {

using namespace block_attention_detail;

namespace {

// Block attention by softmax of the nodes of a tree on a device: one list of the text's keys (of
// each node, where a pattern shows them parts of it) and lists of the nodes above, in one softmax.
Variable joint_tree(const MixInput& input, const TreeNodes& tree, int64_t start,
                    const MixerState& state, const BlockAttentionOptions& pattern) {
  const Variable past_k = carried(state, "k", input.k.dtype());
  const Variable past_v = carried(state, "v", input.v.dtype());
  const int64_t N = tree.size(), past = past_k.defined() ? past_k.size(1) : 0;
  const int64_t depths = tree.deepest + 1;
  const Device device = input.q.value().device();
  const Segment segment{0, 0, depths, 0, depths, past, start, 0, 0};
  const auto begin = [&](int64_t node) {
    return visible_keys(segment, pattern, tree.depth(node)).begin;
  };
  std::vector<int32_t> above(static_cast<size_t>(N * depths), -1);
  int64_t first = past, last_begin = 0;
  for (int64_t node = 0; node < N; ++node) {
    first = std::min(first, begin(node));
    last_begin = std::max(last_begin, begin(node));
    int64_t place = node * depths;
    for (int64_t key = node; key >= 0 && past + tree.depth(key) >= begin(node);
         key = tree.parent(key)) {
      above[static_cast<size_t>(place++)] = static_cast<int32_t>(key);
    }
  }
  const auto as_row = [N](const Variable& x) { return reshape(x, {1, N, x.size(2), x.size(3)}); };
  const Variable q = as_dtype(as_row(input.q), sum_dtype(input.q.dtype()));
  ListedAttentionContext at;
  at.options.scale = pattern.scale;
  at.index = Tensor::from(above, {1, 1, N, depths}, device);
  ListedAttentionResult read = listed_attention({q, as_row(input.k), as_row(input.v), {}}, at);
  if (first < past) {
    if (last_begin == first) {
      at.options.group = N;
      KeyLists lists;
      lists.lists = 1;
      lists.group = N;
      lists.length = past - first;
      lists.keys = past;
      lists.offset = -first;
      at.index = key_lists(lists, device);
    } else {
      const int64_t length = past - first;
      std::vector<int32_t> seen;
      for (int64_t i = 0; i < N * length; ++i) {
        const int64_t key = first + i % length;
        seen.push_back(key >= begin(i / length) ? static_cast<int32_t>(key) : -1);
      }
      at.index = Tensor::from(seen, {1, 1, N, length}, device);
    }
    at.key_mask = mask_from_state(state, "valid");
    read = joint_softmax(read, listed_attention({q, past_k, past_v, {}}, at));
  }
  return as_dtype(reshape(read.y, {N, 1, read.y.size(2), read.y.size(3)}), input.q.dtype());
}

}  // namespace

TreeNodes tree_of(std::span<const MixerNode> nodes) {
  std::vector<int64_t> parents;
  for (const MixerNode& node : nodes) parents.push_back(node.parent);
  return TreeNodes(parents);
}

Variable along_path(const Variable& x, std::span<const int64_t> path) {
  if (on_cuda(x.value())) {
    std::vector<Tensor> tokens;
    for (const int64_t node : path) tokens.push_back(x.value().rows(node, node + 1));
    return Variable(concatenate(tokens, 1));
  }
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
  const auto state_after = [k = input.k, v = input.v, context = nodes[0].context, state,
                            keep](std::span<const int64_t> path) {
    return carry_keys({{}, along_path(k, path), along_path(v, path), {}, {}}, context, state, keep);
  };
  if (on_cuda(input.q.value())) {
    require(!bias.defined() && block.options.weights == BlockWeights::softmax,
            "tree_with_cache: a device reads trees by softmax without a bias");
    return {joint_tree(input, tree_of(nodes), block.place.time_offset, state, block.options),
            state_after};
  }
  BlockAttentionContext with_past = block;
  with_past.past_mask = mask_from_state(state, "valid");
  const Variable y =
      block_attention_tree({input.q, input.k, input.v, carried(state, "k", input.k.dtype()),
                            carried(state, "v", input.v.dtype()), bias},
                           with_past, tree_of(nodes));
  return {y, state_after};
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
