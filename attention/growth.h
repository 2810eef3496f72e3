// How the work of a mechanism's mixing grows with the length, as its traits state it.
#pragma once

#include "layers/token_mixer.h"

namespace linnet {

// T^power, times ln T where there is a logarithm.
struct StatedGrowth {
  double power = 1;
  bool logarithm = false;
  // Up to a factor that does not depend on the length, which is at least 1.
  double at(double length) const;
};

// The growth of a form: the text after "; FORM " where traits.growth has one for it ("T^2 / l;
// noncausal T w"), else the text before the first ";". Throws Error for text that does not begin
// with a power of T.
StatedGrowth stated_growth(const MixerTraits& traits, Form form);

}  // namespace linnet
