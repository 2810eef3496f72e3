// FLASH-Local: attention inside groups of tokens, on the heads of a host or as a gated unit.
#pragma once

#include <optional>

#include "attention/flash/flash.h"
#include "attention/grouped_linear/branches.h"

namespace linnet {

struct FlashLocalParams : GatedUnitOptions {
  std::string kind = "heads";
  std::optional<int64_t> group;
  GroupKernel kappa = GroupKernel::relu2_l2;

  static void describe(ConfigDescription<FlashLocalParams>& d);
  void validate(const ConfigNode& at) const;
  // The gated unit with these options, if it is one.
  std::optional<FlashParams> unit() const;
};

Mechanism flash_local_mechanism();

}  // namespace linnet
