// The short causal convolution of newer recurrent mixers: queries, keys and values read a few
// tokens before their own, channel by channel, before they are used (Fu et al. 2022, H3; Dao and Gu
// 2024, Mamba-2).
#pragma once

#include "attention/common/mixer_support.h"

namespace linnet {

struct ShortConvolutionSpec {
  int64_t taps = 4;  // the token itself included; 0: no convolution, and no bias
  bool bias = false;
};

// The option `conv`.
template <typename Params>
void describe_short_convolution(ConfigDescription<Params>& d) {
  d.field("conv", &Params::conv,
          "taps of the causal convolution of q, k and v, the token itself included; 0: none")
      .range(0, 64)
      .unit("tokens");
}

// silu(sum_n filter[h, c, n] x_{t - taps + 1 + n, h, c} + bias[h, c]) of q, of k and of v.
class ShortConvolution {
 public:
  // Declares "conv.q", "conv.k" and "conv.v" [H,K,taps] in `own`; with bias "conv.q_bias" ...
  // [H,K]. For the causal form.
  ShortConvolution(const ShortConvolutionSpec& spec, const MixerOptions& options,
                   const ParameterScope& own);
  // The input with the results in place of q, k and v, in f32 (f64 where they are). Adds the last
  // taps - 1 tokens to the state `next`: conv_q, conv_k, conv_v [B,.,H,K] and conv_valid. Masked
  // tokens count as zeros and give zeros, and tokens see their own segment only.
  MixInput operator()(const MixInput& input, const MixerContext& context, const MixerState& state,
                      MixerState& next) const;
  void add_cost(const MixerShape& shape, MixerCost& cost) const;

 private:
  ShortConvolutionSpec spec_;
  MixerOptions options_;
  std::vector<Variable> filters_, biases_;
};

// The same of a literal definition: `s` with other q, k and v.
template <typename Number>
ReferenceSequence<Number> short_convolution_definition(const ShortConvolutionSpec& spec,
                                                       const ReferenceSequence<Number>& s);

}  // namespace linnet
