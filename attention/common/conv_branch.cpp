// The convolution branch on its primitive, and its literal definition.
#include "attention/common/conv_branch.h"

#include "attention/primitives/block_attention/carry.h"
#include "attention/primitives/depthwise_conv/depthwise_conv.h"
#include "attention/primitives/depthwise_conv/tree.h"

namespace linnet {

ConvBranch::ConvBranch(int64_t taps, const std::string& init, const MixerOptions& options,
                       const ParameterScope& own)
    : options_(options), taps_(taps) {
  const int64_t acting = options.form == Form::causal ? before() + 1 : taps;
  filters_ = own.parameter(
      "conv", {options.heads, acting},
      init == "zero" ? init_constant(0) : init_uniform(1 / std::sqrt(static_cast<double>(taps))));
}

AttentionMixer::MixResult ConvBranch::mix(const Variable& v, const MixerContext& context,
                                          const MixerState& state,
                                          const std::string& prefix) const {
  BlockAttentionContext at = block_context(options_, context);
  const std::string values = prefix + "conv_v", valid = prefix + "conv_valid";
  const bool causal = options_.form == Form::causal;
  const Variable past = causal ? carried(state, values, v.dtype()) : Variable();
  if (causal) at.past_mask = mask_from_state(state, valid);
  AttentionMixer::MixResult result{depthwise_conv(v, past, filters_, before(), at), {}};
  if (causal) result.state = after(v, context, state, prefix);
  return result;
}

TreeMix ConvBranch::tree(const Variable& v, std::span<const MixerNode> nodes,
                         const MixerState& state) const {
  BlockAttentionContext at = block_context(options_, nodes[0].context);
  at.past_mask = mask_from_state(state, "conv_valid");
  const Variable y =
      depthwise_conv_tree(v, carried(state, "conv_v", v.dtype()), filters_, at, tree_of(nodes));
  return {y, [this, v, context = nodes[0].context, state](std::span<const int64_t> path) {
            return after(along_path(v, path), context, state, "");
          }};
}

MixerState ConvBranch::after(const Variable& v, const MixerContext& context,
                             const MixerState& state, const std::string& prefix) const {
  const std::string values = prefix + "conv_v", valid = prefix + "conv_valid";
  const auto mask = state.find(valid);
  const CarriedTokens after = carry_with_mask(
      {{carried(state, values, v.dtype())}, mask == state.end() ? Variable() : mask->second}, {v},
      context.key_mask, context.segments, before());
  return {{values, after.tokens.front()}, {valid, after.mask}};
}

MixerCost ConvBranch::cost(const MixerShape& shape) const {
  const bool causal = options_.form == Form::causal;
  const auto rows = static_cast<double>(shape.batch), width = static_cast<double>(options_.width);
  const auto element = static_cast<double>(size_of(shape.dtype));
  MixerCost cost;
  cost.mixing =
      rows * width * visible_pairs(conv_band(filters_.shape()[1], before()), shape.queries);
  cost.bytes = static_cast<double>(filters_.shape().elements()) * element;
  if (!causal) return cost;
  const auto kept = static_cast<double>(std::min(before(), shape.queries));
  cost.bytes += rows * kept * (width * element + sizeof(int64_t));
  return cost;
}

template <typename Number>
void add_conv_definition(const ReferenceSequence<Number>& s, int64_t taps, const std::string& name,
                         std::vector<Number>& y) {
  const std::vector<Number>& filters = s.parameter(name);
  const int64_t acting = static_cast<int64_t>(filters.size()) / s.H;
  for (int64_t i = 0; i < s.T; ++i) {
    for (int64_t h = 0; h < s.H; ++h) {
      for (int64_t n = 0; n < acting; ++n) {
        const int64_t j = i - taps / 2 + n;
        if (j < 0 || j >= s.T || !s.sees(i, j)) continue;
        const Number tap = filters[static_cast<size_t>(h * acting + n)];
        for (int64_t c = 0; c < s.V; ++c) {
          y[static_cast<size_t>((i * s.H + h) * s.V + c)] += tap * s.value(j, h)[c];
        }
      }
    }
  }
}
template void add_conv_definition(const ReferenceSequence<float>&, int64_t, const std::string&,
                                  std::vector<float>&);
template void add_conv_definition(const ReferenceSequence<double>&, int64_t, const std::string&,
                                  std::vector<double>&);

}  // namespace linnet
