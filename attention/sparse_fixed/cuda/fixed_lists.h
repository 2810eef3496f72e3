// index_of (attention/sparse_fixed/fixed_lists.h) on a CUDA device.
#pragma once

#include "attention/sparse_fixed/fixed_lists.h"

namespace linnet::cuda {

void fill_index(const FixedLists& lists, const Tensor& index);

}  // namespace linnet::cuda
