// The branch of grouped attention that adds T5's relative bias to the weights inside groups.
#pragma once

#include "attention/common/distance_bias.h"
#include "attention/common/tree_support.h"

namespace linnet {

class RelativeBranch {
 public:
  // For the self forms. Declares the bias in `tied`.
  RelativeBranch(int64_t group, const MixerOptions& options, const ParameterScope& tied);
  // y_i = sum over the keys j of the group of i (causal: j <= i) of bias[h, j - i] v_j. Continues
  // from the values that GroupBranch left in the state, and leaves nothing of its own.
  Variable mix(const Variable& v, const MixerContext& context, const MixerState& state) const;
  // mix() of the nodes of a tree that follows a text, on the host.
  Variable tree(const Variable& v, std::span<const MixerNode> nodes, const MixerState& state) const;
  MixerCost cost(const MixerShape& shape) const;

 private:
  // Queries and keys of zeros, which leave the bias alone; the values and masks of a call.
  BlockAttentionVariables inputs(const Variable& v, const MixerState& state,
                                 BlockAttentionContext& block) const;
  BlockAttentionOptions pattern() const;
  int64_t group_;
  MixerOptions options_;
  DistanceBias bias_;
};

// y [T,H,V] += the branch.
template <typename Number>
void add_relative_definition(const ReferenceSequence<Number>& s, int64_t group,
                             std::vector<Number>& y) {
  for (int64_t i = 0; i < s.T; ++i) {
    for (int64_t j = 0; j < s.T; ++j) {
      if (!s.sees(i, j) || i / group != j / group) continue;
      for (int64_t h = 0; h < s.H; ++h) {
        const Number weight = reference_distance_bias(s, h, j - i);
        for (int64_t c = 0; c < s.V; ++c) {
          y[static_cast<size_t>((i * s.H + h) * s.V + c)] += weight * s.value(j, h)[c];
        }
      }
    }
  }
}

}  // namespace linnet
