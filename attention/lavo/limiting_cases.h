// The limiting cases of LAVO's specification, for heads of 8.
#pragma once

#include "attention/mechanism.h"

namespace linnet {

std::vector<LimitingCase> lavo_limiting_cases();

}  // namespace linnet
