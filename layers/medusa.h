// Medusa heads (Cai et al. 2024): beside the head that predicts the next token, K heads on the same
// vector, head k of which predicts the token k places after that one. `generate` takes their
// guesses as candidates (recipes/engine/speculation.h).
#pragma once

#include <string>
#include <vector>

#include "core/config.h"
#include "layers/parameters.h"

namespace linnet {

// The section `model.medusa`.
struct MedusaConfig {
  int64_t heads = 0;
  double weight = 0.8;

  static void describe(ConfigDescription<MedusaConfig>& d);
  void validate(const ConfigNode& at) const;
  // The weight of head k = 1 ... heads in the loss, in which the model's own head has 1.
  double weight_of(int64_t head) const;
};

// Head k: logits = (h + SiLU(W h + b)) U^T, W [E,E] and b [E] zero at first, U [V,E] at first the
// table of the model's own head (begin_as_head). Parameters "medusa.K.block.weight", ".block.bias"
// and
// ".output.weight" with K = 1 ... heads.
class MedusaHeads {
 public:
  MedusaHeads(const MedusaConfig& config, int64_t width, int64_t vocabulary,
              const ParameterScope& scope);

  int64_t count() const { return static_cast<int64_t>(heads_.size()); }
  int64_t vocabulary() const { return vocabulary_; }
  // The sum of the heads' cross-entropies of hidden [B,T,E], each times its weight: f64, in nats.
  // targets i32 [K,B,T], -1 where nothing is scored.
  Variable loss(const Variable& hidden, const Tensor& targets) const;
  // [N,V] of hidden [N,E] by head k = 1 ... count(), without recording; f32 of bf16.
  Tensor logits(int64_t head, const Tensor& hidden) const;

 private:
  struct Head {
    Variable weight, bias, output;
    double loss_weight;
    Variable hidden(const Variable& x) const;
  };
  std::vector<Head> heads_;
  int64_t vocabulary_;
};

// Gives U of Medusa heads its initial values where `fresh` names it: those of the table of the
// model's own head, "output.weight" or else "embedding.weight", which need to be there.
void begin_as_head(const ParameterSet& parameters, const std::vector<std::string>& fresh);

}  // namespace linnet
