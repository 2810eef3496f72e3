// Grouped attention: a branch inside groups of tokens and one over the groups before, with the
// options that its mechanisms share (You et al. 2024).
#pragma once

#include <optional>

#include "attention/common/grouped/branches.h"
#include "attention/common/grouped/relative_branch.h"

namespace linnet {

// The option `alpha` and its parameter.
template <typename Params>
void describe_alpha(ConfigDescription<Params>& d) {
  d.choice("alpha", &Params::alpha, {"learned", "one"},
           "factor of the earlier groups: a learned scalar of the layer, initially 0, or 1");
}

// Further choices of the study's T5, as options `values`, `bias`, `output_norm`.
template <typename Params>
void describe_group_values(ConfigDescription<Params>& d) {
  d.choice("values", &Params::values, {"raw", "unit"},
           "values in groups: as they are, or each divided by its length");
}
template <typename Params>
void describe_output_norm(ConfigDescription<Params>& d) {
  d.field("output_norm", &Params::output_norm,
          "divide a token's output by 1e-4 + its length over all heads");
}
template <typename Params>
void describe_t5_options(ConfigDescription<Params>& d) {
  describe_group_values(d);
  d.choice("bias", &Params::bias, {"none", "t5"},
           "bias added to weights in a group after kappa: none, or one value per head and bucket "
           "of distances (32 buckets), one table for all layers");
  describe_output_norm(d);
}

// The option `cross`.
template <typename Params>
void describe_group_cross(ConfigDescription<Params>& d) {
  d.choice(
      "cross", &Params::cross, {"linear", "paired"},
      "cross form: linear attention to the source alone, or that times alpha, plus attention of "
      "each group of queries to the group of the source with the same number");
}

// The options of GroupedBranches.
struct GroupedSetting {
  int64_t group = 64;
  GroupKernel kernel = GroupKernel::relu2_l2;
  bool learned_alpha = false, unit_values = false, relative_bias = false, output_norm = false;
  // Which branches the self forms have, and whether earlier groups are averaged.
  bool inside = true, earlier = true, mean = false;
  // Whether the cross form has both branches.
  bool paired = false;
};
template <typename Params>
GroupedSetting grouped_setting(const Params& params) {
  return {.group = params.group,
          .kernel = params.kappa,
          .learned_alpha = params.alpha == "learned",
          .unit_values = params.values == "unit",
          .relative_bias = params.bias == "t5",
          .output_norm = params.output_norm,
          .paired = params.cross == "paired"};
}
// Throws where the options contradict each other; `bias` names the option of the relative bias.
void check_grouped(const GroupedSetting& setting, const ConfigNode& at,
                   const std::string& bias = "bias");

// The branches of the self forms, y = local + alpha * earlier groups; in the cross form the latter
// alone, with factor 1, or, paired, both.
class GroupedBranches {
 public:
  // Declares alpha [1] in the layer's scope where it is learned and there are two branches, and the
  // relative bias, which cross forms do not have, in the tied one.
  GroupedBranches(const GroupedSetting& setting, const MixerOptions& options,
                  const MixerScope& scope);
  AttentionMixer::MixResult mix(const MixInput& input, const MixerContext& context,
                                const MixerState& state) const;
  // mix() of the nodes of a tree that follows a text, on the host; causal.
  TreeMix tree(const MixInput& input, std::span<const MixerNode> nodes,
               const MixerState& state) const;
  MixerCost cost(const MixerShape& shape) const;

 private:
  AttentionMixer::MixResult sum_of_branches(const MixInput& input, const MixerContext& context,
                                            const MixerState& state) const;
  // The state: that of the linear branch, and the source's k (as the other uses them), v, valid.
  AttentionMixer::MixResult sum_of_pairs(const MixInput& input, const MixerContext& context,
                                         const MixerState& state) const;
  TreeMix tree_of_branches(const MixInput& input, std::span<const MixerNode> nodes,
                           const MixerState& state) const;
  // With values as the branches read them.
  MixInput used(const MixInput& input) const;
  Variable weighted(const Variable& linear) const;
  // Whether there are sums inside groups, and over others.
  bool inside() const { return setting_.inside && options_.form != Form::cross; }
  bool paired() const { return setting_.paired && options_.form == Form::cross; }
  bool earlier() const { return setting_.earlier || options_.form == Form::cross; }
  GroupedSetting setting_;
  MixerOptions options_;
  GroupBranch local_;
  GroupMemoryBranch memory_;
  std::optional<RelativeBranch> relative_;
  Variable alpha_;
};

// Its literal definition.
template <typename Number>
std::vector<Number> grouped_definition(const ReferenceSequence<Number>& s,
                                       const GroupedSetting& setting);

}  // namespace linnet
