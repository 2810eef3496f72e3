// The functions of attention/bigbird/block_choice.h on a CUDA device; every output is overwritten.
#pragma once

#include "attention/bigbird/block_choice.h"

namespace linnet::cuda {

void block_draws(const RandomKey& key, const Tensor& draws);
// draws f32.
void choose_blocks(const BlockChoice& choice, const Tensor& draws, const Tensor& chosen);
void block_index(const BlockLists& lists, const Tensor& chosen, const Tensor& index);

}  // namespace linnet::cuda
