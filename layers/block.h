// A transformer block: a token mixer and (unless that replaces it) a feed-forward network, each
// with residual and norm.
#pragma once

#include <optional>

#include "autograd/activation.h"
#include "autograd/norms.h"
#include "layers/model_config.h"
#include "layers/site_dropout.h"
#include "layers/token_mixer.h"

namespace linnet {

// Gain and bias of one norm.
class Norm {
 public:
  Norm() = default;
  Norm(const ModelConfig& config, const ParameterScope& scope);
  Variable operator()(const Variable& x) const { return norm(x, gain_, bias_, spec_); }
  // {residual + dropout(branch), its norm}.
  std::pair<Variable, Variable> after_residual(const Variable& residual, const Variable& branch,
                                               const DropoutSpec& dropout) const {
    return residual_norm(residual, branch, dropout, gain_, bias_, spec_);
  }

 private:
  NormSpec spec_;
  Variable gain_, bias_;
};

// linear -> activation -> (dropout) -> linear; with SwiGLU a third matrix (Shazeer 2020).
class FeedForward {
 public:
  FeedForward(const ModelConfig& config, const ParameterScope& scope);
  Variable operator()(const Variable& x, const MixerContext& context) const;

 private:
  bool gated_;
  Activation activation_ = Activation::gelu;
  double dropout_;
  std::string site_;
  Variable in_weight_, in_bias_, gate_weight_, gate_bias_, out_weight_, out_bias_;
};

struct BlockResult {
  Variable x;  // [B,T,E]
  MixerState state, streams;
};

class Block {
 public:
  // A mixer that replaces the feed-forward has none beside it.
  Block(const ModelConfig& config, const ParameterScope& scope, std::unique_ptr<TokenMixer> mixer);
  BlockResult operator()(const Variable& x, const MixerContext& context,
                         const MixerState& state) const;
  const TokenMixer& mixer() const { return *mixer_; }

 private:
  bool pre_;
  double dropout_;
  std::string site_;
  std::unique_ptr<TokenMixer> mixer_;
  Norm mixer_norm_, feed_forward_norm_;
  std::optional<FeedForward> feed_forward_;
};

}  // namespace linnet
