// Parameters that are exponents of a recurrence.
#pragma once

#include <string_view>

namespace linnet {

// Whether a parameter is a rate of a recurrence: a part of its name is "rates". Rates are
// multiplied by the number of tokens that passed, so that rounding to bf16 would change the
// recurrence: in a model that computes in bf16 their variables are the f32 master weights
// themselves, not the bf16 copies that ParameterSet::materialize makes of all others.
bool is_rate(std::string_view name);

}  // namespace linnet
