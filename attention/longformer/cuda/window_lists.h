// index_of (attention/longformer/window_lists.h) on a CUDA device.
#pragma once

#include "attention/longformer/window_lists.h"

namespace linnet::cuda {

void fill_index(const WindowLists& lists, const Tensor& index);
void fill_index(const CausalLists& lists, const Tensor& index);

}  // namespace linnet::cuda
