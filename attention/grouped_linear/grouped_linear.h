// Grouped linear attention: attention inside groups plus linear attention over the groups before.
#pragma once

#include "attention/common/grouped/grouped.h"
#include "attention/mechanism.h"

namespace linnet {

struct GroupedLinearParams {
  std::string preset = "none";
  int64_t group = 64;
  GroupKernel kappa = GroupKernel::relu2_l2;
  std::string alpha = "learned";
  std::string values = "raw";
  std::string bias = "none";
  bool output_norm = false;
  std::string cross = "linear";

  static void describe(ConfigDescription<GroupedLinearParams>& d);
  void validate(const ConfigNode& at) const;
  MixerTraits traits(MixerTraits traits) const;
};

Mechanism grouped_linear_mechanism();

}  // namespace linnet
