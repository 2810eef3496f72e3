// Keys of a configuration for `linnet attention run` and `show` that are not the mechanism's own:
// what a model says outside of its attention section.
#pragma once

#include "attention/mechanism.h"

namespace linnet {

// Takes width, heads, rotary_width and projection_bias out of `config` and sets the members of
// `options` that they name; absent ones keep their values. `bias: true|false` is another name of
// projection_bias, unless the mechanism has an option `bias` that takes these itself; any other
// `bias` is left to the mechanism. Throws UsageError where width and heads do not go together, and,
// with `sizes_required`, naming those that are missing.
void take_mixer_keys(ConfigNode& config, const Mechanism& mechanism, bool sizes_required,
                     MixerOptions& options);

}  // namespace linnet
