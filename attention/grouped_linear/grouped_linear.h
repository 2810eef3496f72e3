// Grouped linear attention: attention inside groups plus linear attention over the groups before.
#pragma once

#include "attention/grouped_linear/branches.h"

namespace linnet {

struct GroupedLinearParams {
  std::string preset = "none";
  int64_t group = 64;
  GroupKernel kappa = GroupKernel::relu2_l2;
  std::string alpha = "learned";

  static void describe(ConfigDescription<GroupedLinearParams>& d);
};

// The option `alpha` and the parameter behind it.
template <typename Params>
void describe_alpha(ConfigDescription<Params>& d) {
  d.choice("alpha", &Params::alpha, {"learned", "one"},
           "factor of the earlier groups: a number of the layer that begins at 0, or 1");
}

// Both branches of the self forms, y = local + alpha * earlier groups; in the cross form the latter
// alone, with factor 1.
class GroupedBranches {
 public:
  // Declares alpha [1] in `own` where it is learned and there are two branches.
  GroupedBranches(int64_t group, GroupKernel kernel, bool learned, const MixerOptions& options,
                  const ParameterScope& own);
  AttentionMixer::MixResult mix(const MixInput& input, const MixerContext& context,
                                const MixerState& state) const;
  MixerCost cost(const MixerShape& shape) const;

 private:
  MixerOptions options_;
  GroupBranch local_;
  GroupMemoryBranch memory_;
  Variable alpha_;
};

// Its literal definition.
template <typename Number>
std::vector<Number> grouped_definition(const ReferenceSequence<Number>& s, int64_t group,
                                       GroupKernel kernel, bool learned);

Mechanism grouped_linear_mechanism();

}  // namespace linnet
