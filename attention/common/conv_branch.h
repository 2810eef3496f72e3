// The branch of augmented attention that convolves values along time, one filter per head.
#pragma once

#include "attention/common/tree_support.h"

namespace linnet {

// Options of the convolution. Params has members `conv` and `conv_init`.
template <typename Params>
void describe_conv_init(ConfigDescription<Params>& d) {
  d.choice("conv_init", &Params::conv_init, {"zero", "uniform"},
           "taps at first: 0, so that the branch begins without effect, or up to +-1/sqrt(conv)");
}

class ConvBranch {
 public:
  // Declares the taps `conv` [H, n] in `own`: n = taps, centred; causal: the n = floor(taps / 2) +
  // 1 taps of the token and the tokens before it. For the self forms.
  ConvBranch(int64_t taps, const std::string& init, const MixerOptions& options,
             const ParameterScope& own);
  // y_i = sum_n conv[h, n] v_{i - floor(taps / 2) + n}. The state, if causal, has the last values:
  // conv_v, conv_valid, with `prefix` before.
  AttentionMixer::MixResult mix(const Variable& v, const MixerContext& context,
                                const MixerState& state, const std::string& prefix = "") const;
  // mix() of the nodes of a tree that follows a text, on the host; causal.
  TreeMix tree(const Variable& v, std::span<const MixerNode> nodes, const MixerState& state) const;
  MixerCost cost(const MixerShape& shape) const;

 private:
  // The last values of `state` and v, with their mask.
  MixerState after(const Variable& v, const MixerContext& context, const MixerState& state,
                   const std::string& prefix) const;
  int64_t before() const { return taps_ / 2; }
  MixerOptions options_;
  int64_t taps_;
  Variable filters_;
};

// y [T,H,V] += the branch, with the filters of that name.
template <typename Number>
void add_conv_definition(const ReferenceSequence<Number>& s, int64_t taps, const std::string& name,
                         std::vector<Number>& y);

}  // namespace linnet
