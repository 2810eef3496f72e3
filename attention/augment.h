// Augmentation: a convolution of the values and attention inside groups beside any mechanism that
// works between the usual four projections.
#pragma once

#include "attention/mechanism.h"

namespace linnet {

// The mechanism with the option `augment: {conv: 63, local: 64, ...}`: the self forms
// gain these branches with factor 1 (You et al. 2024, table 16, which gives results only; the
// factor is our reading); the cross form ignores it. Its parameters are called augment.conv, its
// states augment.*. Making the mixer throws UsageError where the host has nothing to put them
// beside.
Mechanism augmentable(Mechanism host);

// The options of `augment`, with their defaults.
ConfigSchema augmentation_schema();

// Whether the option is possible: false for a mixer that does not project values of heads, and for
// the cross form.
bool takes_augmentation(const TokenMixer& mixer, Form form);

}  // namespace linnet
