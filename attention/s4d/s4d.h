// S4D: diagonal state-space layers in place of attention (Gu et al. 2022).
#pragma once

#include <optional>

#include "attention/mechanism.h"

namespace linnet {

struct S4dParams {
  std::string preset = "none";
  int64_t states = 64;  // N: half as many complex modes
  int64_t channels = 1;
  std::string discretization = "zoh";
  std::string initial = "inv";
  bool shared = true;
  std::string b_init = "normal";
  double step_min = 1e-3, step_max = 0.1;
  bool bidirectional = false;
  std::string output = "linear";
  std::optional<double> dropout;  // null: the model's attention_dropout

  static void describe(ConfigDescription<S4dParams>& d);
  // There is no causal form where later tokens are read.
  MixerTraits traits(MixerTraits traits) const;
  int64_t modes() const { return states / 2; }
  int64_t rate_rows(int64_t width) const { return shared ? 1 : width; }
};

Mechanism s4d_mechanism();

}  // namespace linnet
