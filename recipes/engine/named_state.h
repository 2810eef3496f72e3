// The flat state of an optimizer or an average by the names of parameters, as checkpoints store it.
#pragma once

#include <map>
#include <string>

#include "layers/parameters.h"
#include "optim/optimizer.h"

namespace linnet {

// The same storage with each flat tensor "m" as views "m/layers.0.attention.q.weight" of the shapes
// of the parameters; counters stay as they are.
StateTensors named_state(const StateTensors& state, const ParameterSet& parameters);

// Puts a saved state back into `state`, whose storage its owner shares: one by names, or a flat one
// of versions before these. Throws as restore_state().
void restore_named_state(const std::string& owner, const StateTensors& state,
                         const ParameterSet& parameters, const StateTensors& saved);

// The averaged weights of average.h5, by name, of either version; `label` is its path. Throws Error
// where one is missing.
std::map<std::string, Tensor> averaged_weights(const StateTensors& saved,
                                               const ParameterSet& parameters,
                                               const std::string& label);

}  // namespace linnet
