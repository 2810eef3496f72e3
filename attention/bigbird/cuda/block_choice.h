// The pieces of attention/bigbird/block_choice.h on a CUDA device; every output is overwritten.
#pragma once

#include "attention/bigbird/block_choice.h"

namespace linnet::cuda {

void block_numbers(const RandomKey& key, const Tensor& numbers);
// numbers f32.
void choose_blocks(const BlockChoice& choice, const Tensor& numbers, const Tensor& chosen);
void block_index(const BlockLists& lists, const Tensor& chosen, const Tensor& index);

}  // namespace linnet::cuda
