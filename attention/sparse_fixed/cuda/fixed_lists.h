// index_of and bias_of (attention/sparse_fixed/fixed_lists.h) on a CUDA device.
#pragma once

#include "attention/sparse_fixed/fixed_lists.h"

namespace linnet::cuda {

void fill_index(const BlockwiseLists& lists, const Tensor& index);
void fill_bias(const BlockwiseLists& lists, const Tensor& bias);
// positions may be undefined.
void fill_index(const DocumentLists& lists, const Tensor& positions, const Tensor& index);

}  // namespace linnet::cuda
