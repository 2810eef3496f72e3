// key_lists (attention/common/joint/key_lists.h) on a CUDA device.
#pragma once

#include "attention/common/joint/key_lists.h"

namespace linnet::cuda {

void key_lists(const KeyLists& rule, const Tensor& lists);

}  // namespace linnet::cuda
