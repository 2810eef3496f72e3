// made (attention/longformer/window_lists.h) on a CUDA device.
#pragma once

#include "attention/longformer/window_lists.h"

namespace linnet::cuda {

void fill(const WindowLists& lists, const ListsWithBias& to);
void fill(const CausalLists& lists, const ListsWithBias& to);

}  // namespace linnet::cuda
