// The registry of attention mechanisms: an explicit list; everything else (recipes, the conformance
// suite, `linnet attention`, documentation) loops over it.
#pragma once

#include <string_view>
#include <vector>

#include "attention/mechanism.h"

namespace linnet {

// All mechanisms, in the order of the list in registry.cpp; plugins follow.
const std::vector<Mechanism>& mechanisms();
// Throws UsageError with the nearest names when there is none.
const Mechanism& find_mechanism(std::string_view name);
// Adds a mechanism from outside. Throws UsageError when the name is taken.
void register_mechanism(Mechanism mechanism);

// The factory for a model whose recipe says `attention: {name: ..., ...}`. Checks name, parameters
// and form at once, so that a recipe is refused before anything is built.
MixerFactory make_mixer_factory(const ConfigNode& attention, Form form);

}  // namespace linnet
