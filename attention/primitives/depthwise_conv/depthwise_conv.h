// Depthwise convolutions along time, on Variables. The mathematics is in cpu.h.
#pragma once

#include "attention/primitives/block_attention/block_attention.h"
#include "attention/primitives/depthwise_conv/cpu.h"

namespace linnet {

// y_i = sum_n taps[h, n] x_{i - before + n}, y like x [B,T,H,V]. taps: [H, count], or
// [H, V, count] for a filter of its own for every channel; tap `before` acts on the token itself,
// so that before = count - 1 is causal and before = count / 2 centred. `past` [B,P,H,V] (may be
// undefined) precedes the first document of each row: the last `before` tokens are enough. Masks,
// segments and positions of the context mean what they mean for block_attention; its options are
// not looked at. Positions outside the document and masked ones are zeros; masked tokens give
// 0. Differentiable in x, past and taps. On a CUDA device f32 and bf16; in bf16, filters of 9 to 65
// taps per head run on tensor cores, which round taps to bf16. Throws Error on shapes that do not
// fit.
Variable depthwise_conv(const Variable& x, const Variable& past, const Variable& taps,
                        int64_t before, const BlockAttentionContext& context);

}  // namespace linnet
