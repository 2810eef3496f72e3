// Branches of FLASH that exist twice: on the heads of a host, and as a gated unit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attention/define.h"
#include "attention/flash/flash.h"

namespace linnet {

// Params has members `kind` and `group` (null: kHostGroup, of a unit kUnitGroup).
inline constexpr int64_t kHostGroup = 64, kUnitGroup = 256;
template <typename Params>
void describe_kind(ConfigDescription<Params>& d) {
  d.choice("kind", &Params::kind, {"heads", "gau"},
           "the branch on the heads of a host, or FLASH's gated unit, which replaces attention "
           "and feed-forward");
  d.field("group", &Params::group, "tokens C of a group; null: 64, of a gated unit 256")
      .range(1, 1 << 20)
      .unit("tokens");
}

// Throws where one of these options is not at its default, since that kind does not read it.
void refuse_options(const ConfigNode& at, const ConfigNode& defaults, const std::string& kind,
                    const std::vector<std::string>& names);

// `mechanism`, which works on heads, or instead the gated unit that its Params request by
// `std::optional<FlashParams> unit() const`.
template <typename Params>
Mechanism or_flash_unit(Mechanism mechanism) {
  mechanism.bind = [on_heads = mechanism.bind, traits_of = mechanism.traits_of,
                    name = mechanism.name,
                    presets = mechanism.presets](const ConfigNode& parameters) -> MixerFactory {
    const auto unit = parse_config<Params>(apply_preset(parameters, presets)).unit();
    if (!unit) return on_heads(parameters);
    return [unit = *unit, traits = traits_of(parameters), name](const MixerOptions& options,
                                                                const MixerScope& scope) {
      require_form(name, traits, options.form);
      return make_flash_unit(name.c_str(), unit, options, scope);
    };
  };
  return mechanism;
}

}  // namespace linnet
