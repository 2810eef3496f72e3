#include "attention/common/grouped/grouped.h"

#include "attention/common/wave_features.h"
#include "autograd/arithmetic.h"

namespace linnet {
namespace {

// Added to the length that outputs are divided by.
constexpr double kOutputFloor = 1e-4;

// y / (kOutputFloor + |y|) with the length over all heads of a token.
Variable divided_by_length(const Variable& y) {
  const int64_t B = y.size(0), T = y.size(1), width = y.size(2) * y.size(3);
  const DType dtype = sum_dtype(y.dtype());
  const Variable ones(Tensor::full({1, width}, 1, dtype, y.value().device()));
  // scaled_directions adds kLengthFloor.
  const Variable rows =
      scale(reshape(cast(y, dtype), {B, T, 1, width}), kLengthFloor / kOutputFloor);
  return reshape(cast(scaled_directions(rows, ones, {}), y.dtype()), y.shape());
}

}  // namespace

void check_grouped(const GroupedSetting& setting, const ConfigNode& at, const std::string& bias) {
  if (setting.relative_bias && setting.kernel == GroupKernel::softmax) {
    throw located_error(
        at.location_of(bias), bias,
        ": the relative bias is added to unnormalised weights; with kappa: softmax remove it");
  }
}

GroupedBranches::GroupedBranches(const GroupedSetting& setting, const MixerOptions& options,
                                 const MixerScope& scope)
    : setting_(setting),
      options_(options),
      local_(setting.kernel, setting.group, options),
      memory_(setting.group, options, setting.mean) {
  if (!inside() && !paired()) return;
  if (setting.learned_alpha && setting.earlier)
    alpha_ = scope.own.parameter("alpha", {1}, init_constant(0));
  if (setting.relative_bias && inside()) relative_.emplace(setting.group, options, scope.tied);
}

AttentionMixer::MixResult GroupedBranches::mix(const MixInput& input, const MixerContext& context,
                                               const MixerState& state) const {
  AttentionMixer::MixResult result = sum_of_branches(used(input), context, state);
  if (setting_.output_norm) result.y = divided_by_length(result.y);
  return result;
}

TreeMix GroupedBranches::tree(const MixInput& input, std::span<const MixerNode> nodes,
                              const MixerState& state) const {
  TreeMix result = tree_of_branches(used(input), nodes, state);
  if (setting_.output_norm) result.y = divided_by_length(result.y);
  return result;
}

MixInput GroupedBranches::used(const MixInput& input) const {
  MixInput used = input;
  if (setting_.unit_values && input.v.defined()) {
    used.v =
        scale(unit_vectors(input.v), 1 / std::sqrt(static_cast<double>(options_.head_width())));
  }
  return used;
}

AttentionMixer::MixResult GroupedBranches::sum_of_branches(const MixInput& input,
                                                           const MixerContext& context,
                                                           const MixerState& state) const {
  if (paired()) return sum_of_pairs(input, context, state);
  if (!inside()) return memory_.mix(input, context, state);
  AttentionMixer::MixResult local = local_.mix(input, context, state);
  if (relative_) local.y = add(local.y, relative_->mix(input.v, context, state));
  if (!earlier()) return local;
  AttentionMixer::MixResult before = memory_.mix(input, context, state);
  local.state.merge(before.state);
  return {add(local.y, weighted(before.y)), std::move(local.state)};
}

TreeMix GroupedBranches::tree_of_branches(const MixInput& input, std::span<const MixerNode> nodes,
                                          const MixerState& state) const {
  if (!inside()) return memory_.tree(input, nodes, state);
  TreeMix local = local_.tree(input, nodes, state);
  if (relative_) local.y = add(local.y, relative_->tree(input.v, nodes, state));
  if (!earlier()) return local;
  TreeMix before = memory_.tree(input, nodes, state);
  const Variable y = add(local.y, weighted(before.y));
  return with_states(y, {std::move(local), std::move(before)});
}

Variable GroupedBranches::weighted(const Variable& linear) const {
  return alpha_.defined() ? multiply(repeat(alpha_, linear.shape()), linear) : linear;
}

AttentionMixer::MixResult GroupedBranches::sum_of_pairs(const MixInput& input,
                                                        const MixerContext& context,
                                                        const MixerState& state) const {
  require_counted_positions(context, "grouped attention");
  AttentionMixer::MixResult result = memory_.mix(input, context, state);
  MixInput pairs = input;
  MixerState source = state;
  if (state.empty()) {
    pairs.k = local_.keys(input.k);
    source = encoded_source(pairs, context);
  }
  pairs.k = as_dtype(source.at("k"), input.q.dtype());
  pairs.v = as_dtype(source.at("v"), input.q.dtype());
  MixerContext at = context;
  at.source_mask = mask_from_state(source, "valid");
  result.y = add(local_.mix_paired(pairs, at), weighted(result.y));
  result.state.merge(source);
  return result;
}

MixerCost GroupedBranches::cost(const MixerShape& shape) const {
  MixerCost cost;
  const auto add_cost = [&](const MixerCost& part) {
    cost.mixing += part.mixing;
    cost.bytes += part.bytes;
  };
  if (earlier()) add_cost(memory_.cost(shape));
  if (inside()) add_cost(local_.cost(shape));
  if (paired()) add_cost(local_.paired_cost(shape));
  if (relative_) add_cost(relative_->cost(shape));
  if (alpha_.defined()) cost.bytes += static_cast<double>(size_of(shape.dtype));
  return cost;
}

template <typename Number>
std::vector<Number> grouped_definition(const ReferenceSequence<Number>& s,
                                       const GroupedSetting& setting) {
  ReferenceSequence<Number> used = s;
  for (auto at = used.v.begin(); setting.unit_values && at != used.v.end(); at += s.V) {
    const Number length =
        std::max(std::sqrt(dot_product(&*at, &*at, s.V)), static_cast<Number>(1e-12));
    std::for_each(at, at + s.V, [&](Number& value) { value = s.stored(value / length); });
  }
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  const bool cross = s.form == Form::cross, inside = setting.inside && !cross;
  const bool pairs = setting.paired && cross;
  if (inside || pairs) add_group_definition(used, setting.kernel, setting.group, y);
  if (inside && setting.relative_bias) add_relative_definition(used, setting.group, y);
  const bool learned = setting.learned_alpha && (inside || pairs);
  const Number factor = learned ? s.parameter("alpha")[0] : Number{1};
  if (setting.earlier || cross) {
    add_group_memory_definition(used, setting.group, factor, y, setting.mean);
  }
  const int64_t width = s.H * s.V;
  for (auto at = y.begin(); setting.output_norm && at != y.end(); at += width) {
    std::for_each(at, at + width, [&](Number& value) { value = s.stored(value); });
    const Number length = std::sqrt(dot_product(&*at, &*at, width));
    std::for_each(at, at + width,
                  [&](Number& value) { value /= static_cast<Number>(kOutputFloor) + length; });
  }
  return y;
}
template std::vector<float> grouped_definition(const ReferenceSequence<float>&,
                                               const GroupedSetting&);
template std::vector<double> grouped_definition(const ReferenceSequence<double>&,
                                                const GroupedSetting&);

}  // namespace linnet
