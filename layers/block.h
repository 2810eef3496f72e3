// A transformer block: a token mixer, in a decoder behind an encoder cross-attention, and (unless
// the mixer replaces it) a feed-forward network, each with residual and norm.
#pragma once

#include <functional>
#include <optional>
#include <span>

#include "autograd/activation.h"
#include "autograd/norms.h"
#include "layers/model_config.h"
#include "layers/site_dropout.h"
#include "layers/token_mixer.h"

namespace linnet {

// residual + dropout(branch), [B,T,E], which the norm that follows adds in its own pass; an
// undefined branch adds nothing.
struct ResidualSum {
  Variable residual, branch = {};
  DropoutSpec dropout = {};
  Variable value() const {
    return branch.defined() ? residual_dropout(residual, branch, dropout) : residual;
  }
};

// Gain and bias of one norm.
class Norm {
 public:
  Norm() = default;
  Norm(const ModelConfig& config, const ParameterScope& scope);
  Variable operator()(const Variable& x) const { return norm(x, gain_, bias_, spec_); }
  // {the sum, its norm}.
  std::pair<Variable, Variable> of_sum(const ResidualSum& x) const {
    return residual_norm(x.residual, x.branch, x.dropout, gain_, bias_, spec_);
  }

 private:
  NormSpec spec_;
  Variable gain_, bias_;
};

// linear -> activation -> (dropout) -> linear; with SwiGLU and GEGLU a third matrix (Shazeer 2020),
// GEGLU's gate by the approximated GELU, as T5 v1.1 has it.
class FeedForward {
 public:
  FeedForward(const ModelConfig& config, const ParameterScope& scope);
  Variable operator()(const Variable& x, const MixerContext& context) const;

 private:
  bool gated_;
  Activation activation_;  // of the gate where there is one
  double dropout_;
  std::string site_;
  Variable in_weight_, in_bias_, gate_weight_, gate_bias_, out_weight_, out_bias_;
};

struct BlockResult {
  ResidualSum x;
  MixerState state, streams;
  MixerState cross = {};  // the encoded source
};

class Block {
 public:
  // A mixer that replaces the feed-forward has none beside it. `cross`: of the cross form, in
  // blocks that read a source; null in others.
  Block(const ModelConfig& config, const ParameterScope& scope, std::unique_ptr<TokenMixer> mixer,
        std::unique_ptr<TokenMixer> cross);
  // source [B,S,E]: what the cross-attention reads; undefined where there is none, or where `cross`
  // is what an earlier call made of it.
  BlockResult operator()(ResidualSum x, const Variable& source, const MixerContext& context,
                         const MixerState& state, const MixerState& cross) const;
  // The same for sequences with states of their own: see TokenMixer::forward_rows and
  // forward_cross_rows. `context`: of all of them. `sources`: empty where nothing reads one.
  ResidualSum rows(ResidualSum x, const MixerContext& context, std::span<MixerRow> rows,
                   std::span<const MixerState* const> sources) const;
  // The same for the nodes of a tree after a text: see TokenMixer::forward_tree.
  struct Tree {
    ResidualSum x;
    std::function<MixerState(std::span<const int64_t> path)> state_after;
  };
  Tree tree(ResidualSum x, const MixerContext& context, std::span<MixerNode> nodes,
            const MixerState& state, TreeStates states) const;
  // Its mixers, the cross-attention last.
  std::vector<const TokenMixer*> mixers() const;

 private:
  // {x, what the mixer reads of it}.
  std::pair<Variable, Variable> entered(ResidualSum x) const;
  // cross(normed): the result of the cross-attention.
  template <typename Cross>
  BlockResult after_mixing(const Variable& x, const MixerContext& context, MixerResult mixed,
                           const Cross& cross) const;

  bool pre_;
  double dropout_;
  std::string site_;
  std::unique_ptr<TokenMixer> mixer_, cross_;
  Norm mixer_norm_, cross_norm_, feed_forward_norm_;
  std::optional<FeedForward> feed_forward_;
};

}  // namespace linnet
