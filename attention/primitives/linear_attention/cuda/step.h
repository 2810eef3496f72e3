// One token of causal linear attention for every row of a batch, in one launch, for decoding token
// by token. Internal to this folder.
#pragma once

#include "attention/primitives/linear_attention/cuda/linear_attention.h"

namespace linnet::cuda {

// linear_attention_causal_forward of inputs with one token per row, for all options; y, memory,
// mass and denominators are f32. It reads the carried state once and writes the one after the
// token: bytes per key head 8 m V (4 m V each), operations 4 m V for each of its query heads.
void linear_attention_step(const LinearAttentionTensors& in, const Tensor& y, const Tensor& memory,
                           const Tensor& mass, const Tensor& denominators);

}  // namespace linnet::cuda
