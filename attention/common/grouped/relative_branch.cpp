#include "attention/common/grouped/relative_branch.h"

#include "attention/primitives/block_attention/tree.h"

namespace linnet {

RelativeBranch::RelativeBranch(int64_t group, const MixerOptions& options,
                               const ParameterScope& tied)
    : group_(group), options_(options), bias_(options, tied) {}

Variable RelativeBranch::mix(const Variable& v, const MixerContext& context,
                             const MixerState& state) const {
  BlockAttentionContext block = block_context(options_, context);
  const BlockAttentionVariables in = inputs(v, state, block);
  return block_attention(in, block);
}

Variable RelativeBranch::tree(const Variable& v, std::span<const MixerNode> nodes,
                              const MixerState& state) const {
  BlockAttentionContext block = block_context(options_, nodes[0].context);
  const BlockAttentionVariables in = inputs(v, state, block);
  return block_attention_tree(in, block, tree_of(nodes));
}

BlockAttentionVariables RelativeBranch::inputs(const Variable& v, const MixerState& state,
                                               BlockAttentionContext& block) const {
  block.options = pattern();
  const Device device = v.value().device();
  const auto zeros = [&](const Variable& like) {
    return Variable(
        Tensor::zeros({like.size(0), like.size(1), like.size(2), 1}, v.dtype(), device));
  };
  BlockAttentionVariables in{zeros(v), zeros(v), v, {}, {}, {}};
  if (options_.form == Form::causal) {
    in.past_v = carried(state, "v", v.dtype());
    if (in.past_v.defined()) in.past_k = zeros(in.past_v);
    block.past_mask = mask_from_state(state, "valid");
  }
  const int64_t after = options_.form == Form::causal ? 0 : group_ - 1;
  in.bias = bias_.table(1 - group_, group_ + after, device);
  block.bias_origin = group_ - 1;
  return in;
}

MixerCost RelativeBranch::cost(const MixerShape& shape) const {
  const auto rows = static_cast<double>(shape.batch * options_.heads);
  MixerCost cost;
  cost.mixing = rows * visible_pairs(pattern(), shape.queries) *
                static_cast<double>(1 + options_.head_width());
  cost.bytes = bias_.bytes(shape.dtype);
  return cost;
}

BlockAttentionOptions RelativeBranch::pattern() const {
  BlockAttentionOptions pattern;
  pattern.pattern = BlockPattern::blocks;
  pattern.causal = options_.form == Form::causal;
  pattern.block = group_;
  pattern.weights = BlockWeights::identity;
  return pattern;
}

}  // namespace linnet
