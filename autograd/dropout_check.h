// What every kind of dropout asks for.
#pragma once

#include "autograd/dropout.h"

namespace linnet {

// Throws Error unless spec can drop elements of x: [B, T, C], a probability in (0, 1), and the
// number of each row's example.
void require_droppable(const Tensor& x, const DropoutSpec& spec);

}  // namespace linnet
