#include "attention/growth.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace linnet {

double StatedGrowth::at(double length) const {
  // ln 1 = 0 is no amount of work.
  return std::pow(length, power) * (logarithm ? std::log(std::max(length, 2.0)) : 1.0);
}

StatedGrowth stated_growth(const MixerTraits& traits, Form form) {
  const std::string own = concat("; ", name_of(form), " ");
  const size_t at = traits.growth.find(own);
  MixerTraits of_form = traits;
  of_form.growth = at == std::string::npos ? traits.growth : traits.growth.substr(at + own.size());
  of_form.growth = of_form.growth.substr(0, of_form.growth.find(';'));
  return {of_form.growth_exponent(), of_form.growth.find(" ln T") != std::string::npos};
}

}  // namespace linnet
