// FLASH-Local: attention inside groups of tokens, on the heads of a host or as a gated unit.
#pragma once

#include <optional>

#include "attention/common/grouped/grouped.h"
#include "attention/flash/flash.h"

namespace linnet {

struct FlashLocalParams : GatedUnitOptions {
  std::string kind = "heads";
  std::optional<int64_t> group;
  GroupKernel kappa = GroupKernel::relu2_l2;
  // Options of the form on heads, as in the study's T5.
  std::string values = "raw";
  bool relative_bias = false, output_norm = false;

  static void describe(ConfigDescription<FlashLocalParams>& d);
  void validate(const ConfigNode& at) const;
  MixerTraits traits(MixerTraits traits) const;
  GroupedSetting heads() const;
  // The gated unit with these options, if it is one.
  std::optional<FlashParams> unit() const;
};

Mechanism flash_local_mechanism();

}  // namespace linnet
