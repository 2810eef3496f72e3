// Choosing tokens on a CUDA device, as recipes/engine/sampling.h does on the host: the likeliest
// one, or a draw at a temperature.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace linnet::cuda {

// What a row draws by, i64 on the device: seed, step and site of its key, the number of the draw.
inline constexpr int64_t kDrawValues = 4;

// In place of a token: a logit is NaN; the largest one is not finite, at a temperature above 0.
inline constexpr int32_t kLogitIsNan = -1, kNothingToDraw = -2;

// tokens i32 [N] = what each row of logits f32 [N,V] chooses at its temperature, f64 [N], by its
// draw, i64 [N,kDrawValues]; then the draw counts one on, and so does the row's position, i32 [N].
// weights f64 [N,V] are scratch. The draw is the host's; sums are added in another order, so that
// one within rounding of the boundary of two tokens may fall on the other side of it.
void sample_rows(const Tensor& logits, const Tensor& temperatures, const Tensor& draws,
                 const Tensor& weights, const Tensor& positions, const Tensor& tokens);

}  // namespace linnet::cuda
