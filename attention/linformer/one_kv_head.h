// Keys and values of one head that all heads of a layer read.
#pragma once

#include "attention/mechanism.h"

namespace linnet {

class OneKvHead {
 public:
  // Parameters kv_head.k.weight, kv_head.v.weight [K,E] and, where the options have biases,
  // kv_head.k.bias, kv_head.v.bias [K].
  OneKvHead(const MixerOptions& options, const ParameterScope& scope);

  // `input` with keys and values of all H heads [B,S,H,K], keys rotated where the options say so
  // and the form is not cross (as the layer does); as it is where it has keys, or no tokens to make
  // them of.
  MixInput with_keys(const MixInput& input, const MixerContext& context) const;

  // Projections and bytes of parameters. The one head is projected once for each head that reads.
  MixerCost cost(const MixerShape& shape) const;

 private:
  Variable heads(const Variable& x, const Variable& weight, const Variable& bias) const;

  MixerOptions options_;
  Variable key_, value_, key_bias_, value_bias_;
};

}  // namespace linnet
