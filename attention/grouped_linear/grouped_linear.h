// Grouped linear attention: attention inside groups plus linear attention over the groups before.
#pragma once

#include <optional>

#include "attention/grouped_linear/branches.h"
#include "attention/grouped_linear/relative_branch.h"

namespace linnet {

struct GroupedLinearParams {
  std::string preset = "none";
  int64_t group = 64;
  GroupKernel kappa = GroupKernel::relu2_l2;
  std::string alpha = "learned";
  std::string values = "raw";
  std::string bias = "none";
  bool output_norm = false;

  static void describe(ConfigDescription<GroupedLinearParams>& d);
  void validate(const ConfigNode& at) const;
  MixerTraits traits(MixerTraits traits) const;
};

// The option `alpha` and the parameter behind it.
template <typename Params>
void describe_alpha(ConfigDescription<Params>& d) {
  d.choice("alpha", &Params::alpha, {"learned", "one"},
           "factor of the earlier groups: a number of the layer that begins at 0, or 1");
}

// What the study's T5 does besides, as options `values`, `bias`, `output_norm`.
template <typename Params>
void describe_t5_options(ConfigDescription<Params>& d) {
  d.choice("values", &Params::values, {"raw", "unit"},
           "what groups sum: the values, or each divided by its length");
  d.choice("bias", &Params::bias, {"none", "t5"},
           "what weights in a group gain after kappa: nothing, or a number for each of 32 buckets "
           "of distances and each head, one table for all layers");
  d.field("output_norm", &Params::output_norm,
          "divide what a token's groups give by 1e-4 + its length over all heads");
}

// The options of GroupedBranches.
struct GroupedSetting {
  int64_t group;
  GroupKernel kernel;
  bool learned_alpha, unit_values, relative_bias, output_norm;
};
template <typename Params>
GroupedSetting grouped_setting(const Params& params) {
  return {
      params.group,        params.kappa,      params.alpha == "learned", params.values == "unit",
      params.bias == "t5", params.output_norm};
}
// Throws where the options contradict each other.
void check_grouped(const GroupedSetting& setting, const ConfigNode& at);

// Both branches of the self forms, y = local + alpha * earlier groups; in the cross form the latter
// alone, with factor 1.
class GroupedBranches {
 public:
  // Declares alpha [1] in the layer's scope where it is learned and there are two branches, and the
  // relative bias in the tied one.
  GroupedBranches(const GroupedSetting& setting, const MixerOptions& options,
                  const MixerScope& scope);
  AttentionMixer::MixResult mix(const MixInput& input, const MixerContext& context,
                                const MixerState& state) const;
  MixerCost cost(const MixerShape& shape) const;

 private:
  AttentionMixer::MixResult sum_of_branches(const MixInput& input, const MixerContext& context,
                                            const MixerState& state) const;
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

Mechanism grouped_linear_mechanism();

}  // namespace linnet
