// Arithmetic on the fragments that a warp holds of products on tensor cores.
#pragma once

#include "core/cuda/kernel.h"
#include "core/cuda/mma.h"

namespace linnet::cuda::tensor_core {

__device__ __forceinline__ ResultFragment& operator+=(ResultFragment& sums,
                                                      const ResultFragment& other) {
#pragma unroll
  for (int i = 0; i < 4; ++i) sums.values[i] += other.values[i];
  return sums;
}

// A right operand of ones: its product has sums of rows in every column.
__device__ __forceinline__ RightFragment ones() {
  return {{0x3F803F80u, 0x3F803F80u}};
}

// Sets to 0 the elements right of the diagonal of a square [16,16] in two neighbouring results, or
// left of it.
template <bool right_of_it>
__device__ __forceinline__ void cut_triangle(ResultFragment (&square)[2], int lane) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (right_of_it ? column > row : column < row) square[i / 4].values[i % 4] = 0;
  }
}

// Rows of results times factors: of row lane / 4 and of the row 8 after.
template <int count>
__device__ __forceinline__ void scale_rows(ResultFragment (&results)[count],
                                           const float (&factors)[2]) {
#pragma unroll
  for (int j = 0; j < count; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) results[j].values[i] *= factors[i / 2];
  }
}

// Columns of a left operand [16,16] times factors, rounded again.
__device__ __forceinline__ void scale_columns(LeftFragment& square, const float* factors,
                                              int lane) {
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const float* at = factors + word / 2 * 8 + lane % 4 * 2;
    square.words[word] =
        pack(low_of(square.words[word]) * at[0], high_of(square.words[word]) * at[1]);
  }
}

}  // namespace linnet::cuda::tensor_core
