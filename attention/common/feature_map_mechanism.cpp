// The calls of linear_attention in each form.
#include "attention/common/feature_map_mechanism.h"

#include "attention/common/tree_support.h"
#include "attention/primitives/linear_attention/tree.h"

namespace linnet {
namespace {

// Where tensor cores compute, a mixer that makes f32 features of bf16 activations rounds q and k to
// bf16, as kernels round the features that they make. Exceptions: a mixer that divides itself,
// since the gradients of numerators and denominators nearly cancel and must be summed before
// rounding; and a decay per channel that is divided, which goes to the plain kernels as it is.
MixInput rounded_features(const LinearAttentionOptions& attention, const MixerOptions& options,
                          const MixInput& input, const Variable& log_decay) {
  const Variable& activations = input.x.defined() ? input.x : input.v;
  MixInput result = input;
  const bool of_channels = log_decay.defined() && log_decay.shape().rank() == 4;
  if (!activations.defined() || activations.dtype() != DType::bf16 || of_channels ||
      attention.normalizer == Normalizer::none) {
    return result;
  }
  for (Variable* x : {&result.q, &result.k}) {
    if (x->defined() && x->dtype() == DType::f32 &&
        linear_attention_takes_rounded(x->value(), options.head_width(),
                                       options.form == Form::causal, log_decay.defined())) {
      *x = as_dtype(*x, DType::bf16);
    }
  }
  return result;
}

}  // namespace

AttentionMixer::MixResult feature_map_mix(const LinearAttentionOptions& attention,
                                          const MixerOptions& options, const MixInput& given,
                                          const Proportions& proportions,
                                          const MixerContext& context, const MixerState& state,
                                          const Variable& log_decay) {
  const MixInput input = rounded_features(attention, options, given, log_decay);
  const LinearAttentionVariables variables{input.q,           input.k,         input.v,
                                           proportions.query, proportions.key, log_decay};
  LinearAttentionContext at;
  at.options = attention;
  at.query_mask = context.key_mask;
  at.key_mask = options.form == Form::cross ? context.source_mask : context.key_mask;
  if (options.form != Form::cross) at.segments = context.segments;
  LinearAttentionSums sums;
  const DType dtype = sum_dtype(input.q.dtype());
  if (!state.empty()) sums = {as_dtype(state.at("S"), dtype), as_dtype(state.at("z"), dtype)};
  if (options.form == Form::causal) {
    LinearAttentionResult result = linear_attention_causal(variables, at, sums);
    return {result.y, {{"S", result.state.memory}, {"z", result.state.mass}}};
  }
  if (state.empty()) sums = linear_attention_memory(variables, at);
  const Variable y = linear_attention_read(variables, sums, at);
  if (options.form == Form::noncausal) return {y, {}};
  return {y, {{"S", sums.memory}, {"z", sums.mass}}};
}

Variable feature_map_tree(const LinearAttentionOptions& attention, const MixInput& input,
                          std::span<const MixerNode> nodes, const MixerState& state) {
  LinearAttentionSums sums;
  if (!state.empty()) sums = {state.at("S"), state.at("z")};
  return linear_attention_tree({input.q, input.k, input.v, {}, {}}, attention, tree_of(nodes),
                               sums);
}

MixerCost feature_map_cost(const MixerOptions& options, int64_t features, const MixerShape& shape) {
  // Per token: the key's product added to S [m,V], and the query's product with S.
  const auto sums = static_cast<double>(shape.batch * options.key_heads() * features);
  const auto V = static_cast<double>(options.head_width());
  MixerCost cost;
  cost.mixing =
      static_cast<double>(shape.batch * features) * V *
      static_cast<double>(options.heads * shape.queries + options.key_heads() * shape.keys);
  if (options.form == Form::noncausal) return cost;
  cost.bytes = sums * (V + 1) * static_cast<double>(size_of(sum_dtype(shape.dtype)));
  return cost;
}

}  // namespace linnet
