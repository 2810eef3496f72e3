// FLASH-Global: linear attention over the groups before a token's own, on the heads of a host or as
// a gated unit.
#pragma once

#include <optional>

#include "attention/common/grouped/grouped.h"
#include "attention/flash/flash.h"

namespace linnet {

struct FlashGlobalParams : GatedUnitOptions {
  std::string kind = "heads";
  std::optional<int64_t> group;
  bool mean = false;
  // Options of the form on heads, as in the study's T5.
  std::string values = "raw";
  bool output_norm = false;

  static void describe(ConfigDescription<FlashGlobalParams>& d);
  void validate(const ConfigNode& at) const;
  MixerTraits traits(MixerTraits traits) const;
  GroupedSetting heads() const;
  // The gated unit with these options, if it is one.
  std::optional<FlashParams> unit() const;
};

Mechanism flash_global_mechanism();

}  // namespace linnet
