// Fills the parts of a registry entry that follow from a mechanism's typed parameters, its mixer
// and its literal definition.
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

#include "attention/mechanism.h"

namespace linnet {

// Params: a described struct, with a member `std::string preset` if there are presets. It may say
// `MixerTraits traits(MixerTraits) const` where options change the mechanism's traits. Mixer:
// constructible from (Params, MixerOptions, MixerScope). definition: called with (Params,
// ReferenceSequence<double> or <float>) -> context [T,H,V].
template <DescribedConfig Params, typename Mixer, typename Definition>
Mechanism define_mechanism(Mechanism facts, Definition definition) {
  const auto read = [presets = facts.presets](const ConfigNode& parameters) {
    return parse_config<Params>(apply_preset(parameters, presets));
  };
  const auto traits_with = [traits = facts.traits](const Params& params) {
    if constexpr (requires { params.traits(traits); }) return params.traits(traits);
    return traits;
  };
  facts.traits_of = [read, traits_with](const ConfigNode& parameters) {
    return traits_with(read(parameters));
  };
  facts.between_projections = std::is_base_of_v<AttentionMixer, Mixer>;
  facts.schema = [] { return schema_of<Params>(); };
  facts.resolve = [read](const ConfigNode& parameters) { return to_config_node(read(parameters)); };
  facts.bind = [read, traits_with,
                name = facts.name](const ConfigNode& parameters) -> MixerFactory {
    return [params = read(parameters), traits_with, name](const MixerOptions& options,
                                                          const MixerScope& scope) {
      require_form(name, traits_with(params), options.form);
      return std::unique_ptr<TokenMixer>(std::make_unique<Mixer>(params, options, scope));
    };
  };
  facts.reference = [read, definition](const ConfigNode& parameters,
                                       const ReferenceSequence<double>& sequence) {
    return definition(read(parameters), sequence);
  };
  facts.reference_f32 = [read, definition](const ConfigNode& parameters,
                                           const ReferenceSequence<float>& sequence) {
    return definition(read(parameters), sequence);
  };
  return facts;
}

}  // namespace linnet
