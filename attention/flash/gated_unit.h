// Shared code of gated attention units (Hua et al. 2022): a block whose gate, values and queries
// and keys of one head come from one normed input, and which has no feed-forward beside it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attention/common/mixer_support.h"

namespace linnet {

// The options of all of them.
struct GatedUnitOptions {
  std::string preset = "none";
  int64_t expansion = 2;
  int64_t key_width = 128;
  BlockWeights weights = BlockWeights::relu_squared;
  std::string rope = "partial";
  std::optional<int64_t> rope_width;  // null: as `rope` says
  std::string bias = "t5";
  bool token_shift = false;
  std::string length = "context";
  std::optional<double> dropout;  // null: the model's attention_dropout

  int64_t value_width(const MixerOptions& options) const { return expansion * options.width; }
  // Channels that rotary positions rotate.
  int64_t rotary_width() const {
    if (rope == "partial") return rope_width.value_or(std::min<int64_t>(32, key_width));
    return rope == "whole" ? key_width : 0;
  }
  // Throws where channels cannot be rotated in pairs, or other channels than `rope` names.
  void check(const ConfigNode& at) const;
};

// A member of GatedUnitOptions as one of a struct that derives from it.
template <typename Params, typename V>
V Params::*own_member(V GatedUnitOptions::*member) {
  return member;
}

// Params derives from GatedUnitOptions. Describes the options of the maps.
template <typename Params>
void describe_gated_maps(ConfigDescription<Params>& d, const std::vector<Preset>& presets) {
  std::vector<std::string> names{"none"};
  for (const Preset& preset : presets) names.push_back(preset.name);
  d.field("preset", own_member<Params>(&GatedUnitOptions::preset),
          "options as a paper ran it; explicit options win")
      .choices(std::move(names));
  d.field("expansion", own_member<Params>(&GatedUnitOptions::expansion),
          "width of gate and values as a multiple of the model's")
      .range(1, 16);
  d.field("key_width", own_member<Params>(&GatedUnitOptions::key_width),
          "channels s of queries and keys")
      .range(2, 4096);
  d.choice("rope", own_member<Params>(&GatedUnitOptions::rope), {"none", "partial", "whole"},
           "rotary positions on no channel, on the first `rope_width`, or on all of queries and "
           "keys");
  d.field(
       "rope_width", own_member<Params>(&GatedUnitOptions::rope_width),
       "with rope: partial, channels that are rotated, from the first on; null: 32, or all where "
       "there are fewer")
      .range(2, 4096);
  d.field("token_shift", own_member<Params>(&GatedUnitOptions::token_shift),
          "the first half of the channels comes from the token before");
}
template <typename Params>
void describe_gated_length(ConfigDescription<Params>& d) {
  d.choice("length", own_member<Params>(&GatedUnitOptions::length), {"context", "padded"},
           "divisor N of sums over a whole sequence: the training context, or the padded "
           "length of the call (noncausal only)");
}
// Describes the options of the weights of pairs; `softmax`: whether they may be normalised over all
// keys.
template <typename Params>
void describe_gated_weights(ConfigDescription<Params>& d, bool softmax = false) {
  const auto member = own_member<Params>(&GatedUnitOptions::weights);
  const std::string help = "relu(x)^2 of a logit, or the bounded (1 + erf(...)) / 2 near it";
  if (softmax) {
    d.choice("weights", member,
             {{"relu_squared", BlockWeights::relu_squared},
              {"laplace", BlockWeights::laplace},
              {"softmax", BlockWeights::softmax}},
             help + ", or the softmax of the logits over the keys");
  } else {
    d.choice("weights", member,
             {{"relu_squared", BlockWeights::relu_squared}, {"laplace", BlockWeights::laplace}},
             help);
  }
  d.choice("bias", own_member<Params>(&GatedUnitOptions::bias), {"none", "t5", "toeplitz", "rope"},
           "bias of a distance: none, 32 buckets times sqrt(s), one value per distance of the "
           "context, or the product of two learned vectors with rotary positions, for any length");
  d.field("dropout", own_member<Params>(&GatedUnitOptions::dropout),
          "probability of dropping a weight; null: the model's attention_dropout")
      .at_least(0)
      .below(1);
}

// The maps of one layer. `copies` names the affine copies of the shared projection that it uses;
// a Toeplitz bias has an element for every distance below `reach`.
class GatedUnit {
 public:
  GatedUnit(const char* mechanism, const GatedUnitOptions& params, const MixerOptions& options,
            const MixerScope& scope, const std::vector<std::string>& copies, int64_t reach);

  struct Parts {
    Variable gate;                 // U [B,T,e]
    Variable values;               // V [B,T,1,e]
    std::vector<Variable> copies;  // [B,T,1,s], with rotary positions
    MixerState state;              // of the token shift
  };
  Parts project(const Variable& x, const MixerContext& context, const MixerState& state) const;
  // project() of the nodes of a tree x [N,1,E] at positions [N,1], on the host; its state is left
  // to `shifted`.
  struct TreeParts {
    Parts parts;
    TreeMix shifted;  // state_after is that of the token shift; undefined without one
  };
  TreeParts project_tree(const Variable& x, const Tensor& positions,
                         std::span<const MixerNode> nodes, const MixerState& state) const;
  // out(U * y), y [B,T,1,e] or [B,T,e].
  MixerResult finish(const Parts& parts, const Variable& y, MixerState state) const;

  // Logit biases [1, distances] for keys up to `past` tokens before the first query, and the column
  // of distance 0; undefined where there are none. `factor` multiplies them.
  struct Bias {
    Variable table;
    int64_t origin = 0;
  };
  Bias bias(int64_t past, int64_t T, double factor, Device device) const;
  // N.
  double divisor(int64_t T) const;
  // Cost of the maps, parameters, x, y and the token shift's state, without the mixing.
  MixerCost cost(const MixerShape& shape) const;
  // The key of the layer's draws.
  RandomKey draw_key(const MixerContext& context) const { return context.random.at(site_); }
  const MixerOptions& options() const { return options_; }

 private:
  // The maps of vectors as they are read.
  Parts maps(const Variable& read, const Tensor& positions) const;
  struct Affine {
    Variable gamma, beta;
  };
  GatedUnitOptions params_;
  MixerOptions options_;
  std::string site_;
  int64_t reach_;
  Variable gate_weight_, gate_bias_, value_weight_, value_bias_;
  Variable shared_weight_, shared_bias_, out_weight_, out_bias_, distance_bias_;
  Variable distance_query_, distance_key_;
  std::vector<Affine> affine_;
};

}  // namespace linnet
