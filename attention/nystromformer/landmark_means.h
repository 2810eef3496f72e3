// Nystroemformer's landmarks: means of runs of tokens.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// Role of padding in the landmarks. valid: the valid tokens of a row are split into landmarks, so
// that padding changes nothing; row: all tokens are split, and a landmark is the mean of its valid
// ones; row_of_zeros: all tokens are split, padded ones count as zeros (the authors' code).
enum class LandmarkPadding : uint8_t { valid, row, row_of_zeros };

// Runs of the tokens of each row [B,T]: C = min(landmarks, T) of them, as landmark_of has them.
struct LandmarkCut {
  Tensor owner;   // i32 [B,T]: the landmark of a token, -1 for padding
  Tensor shares;  // [B,C]: weight of a token in its landmark's mean; 0: no landmark
  Tensor used;    // u8 [B,C]: landmarks that exist
};

// mask u8 [B,T] may be undefined. Shares are of `dtype`.
LandmarkCut cut_landmarks(const Tensor& mask, int64_t B, int64_t T, int64_t landmarks,
                          LandmarkPadding padding, DType dtype, Device device);

// Means [B,C,H,K] of x [B,T,H,K], f32 or, on the CPU, f64, the dtype of the shares; 0 where a
// landmark has no tokens. Padding is not read. Differentiable in x.
Variable landmark_means(const Variable& x, const LandmarkCut& cut);

}  // namespace linnet
