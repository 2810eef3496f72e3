// block_bias (attention/common/joint/block_bias.h) on a CUDA device, f32.
#pragma once

#include "attention/common/joint/key_lists.h"

namespace linnet::cuda {

void block_bias(const Tensor& values, const KeyLists& rule, const Tensor& documents,
                const Tensor& bias);
void block_bias_backward(const Tensor& dbias, const KeyLists& rule, const Tensor& documents,
                         const Tensor& dvalues);

}  // namespace linnet::cuda
