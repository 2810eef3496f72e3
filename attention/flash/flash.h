// FLASH: a gated attention unit that is quadratic inside groups of tokens and linear across them
// (Hua et al. 2022).
#pragma once

#include "attention/flash/gated_unit.h"

namespace linnet {

struct FlashParams : GatedUnitOptions {
  int64_t group = 256;
  bool mean = false;
  std::string parts = "both";

  static void describe(ConfigDescription<FlashParams>& d);
  void validate(const ConfigNode& at) const;
  MixerTraits traits(MixerTraits traits) const;
  bool has_local() const { return parts != "global"; }
  bool has_global() const { return parts != "local"; }
};

Mechanism flash_mechanism();

}  // namespace linnet
