// Sorting on a CUDA device by CUB; core/sort.h calls it in builds with CUDA on. The emulated device
// sorts with the CPU's std::stable_sort.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// As linnet::sort_rows, which has checked the arguments; there are keys.
void sort_rows(const Tensor& keys, const Tensor& sorted, const Tensor& order);

}  // namespace linnet::cuda
