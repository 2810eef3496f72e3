// Products of small bf16 matrices on tensor cores, summed in float, by one warp (mma.sync m16n8k16,
// sm_80 and later), and loads of their operands from shared memory (ldmatrix). The emulator
// computes the same fragments. wgmma (sm_90), whose operands stay in shared memory and whose warps
// work in fours, would replace multiply() and the loads together.
//
// All lanes of a warp take part in every function here, from one source line. Tiles lie in shared
// memory row by row, `stride` elements apart; a row begins on 16 bytes, and rows 16 bytes longer
// than a multiple of 128 are read without bank conflicts.
#pragma once

#include "core/cuda/kernel.h"
#if !defined(__CUDACC__)
#include <cstring>

#include "core/cuda/emulation/tensor_cores.h"
#endif

namespace linnet::cuda {

// A lane's part of a left operand [16,16], two bf16 per word, the first in its low half. With
// g = lane / 4 and t = 2 (lane % 4), words 0 and 1 are rows g and g + 8 at columns t and t + 1,
// words 2 and 3 the same rows at columns t + 8 and t + 9.
struct LeftFragment {
  uint32_t words[4];
};
// A right operand [16,8]: rows t and t + 1, then t + 8 and t + 9, of column g.
struct RightFragment {
  uint32_t words[2];
};
// A result [16,8]: row g at columns t and t + 1, then row g + 8.
struct ResultFragment {
  float values[4];
};

// The address in a tile of a lane's two neighbouring values of row g + 8 half of the j-th of the
// results side by side.
__device__ __forceinline__ uint32_t* word_at(kernel_bf16* tile, int stride, int lane, int half,
                                             int j) {
  return reinterpret_cast<uint32_t*>(tile + (lane / 4 + 8 * half) * stride + 8 * j + lane % 4 * 2);
}
__device__ __forceinline__ const uint32_t* word_at(const kernel_bf16* tile, int stride, int lane,
                                                   int half, int j) {
  return word_at(const_cast<kernel_bf16*>(tile), stride, lane, half, j);
}

// The place that errors of the emulator name; nothing on a GPU.
#if defined(__CUDACC__)
struct MatrixSite {};
#define LINNET_MATRIX_SITE \
  MatrixSite {}
#else
using MatrixSite = emulation::Site;
#define LINNET_MATRIX_SITE                             \
  MatrixSite {                                         \
    "tensor cores", __builtin_FILE(), __builtin_LINE() \
  }
#endif

// Two values, rounded to nearest even.
__device__ __forceinline__ uint32_t pack(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
#else
  const kernel_bf16 both[2] = {__float2bfloat16(low), __float2bfloat16(high)};
  uint32_t word;
  memcpy(&word, both, sizeof word);
  return word;
#endif
}
__device__ __forceinline__ float low_of(uint32_t word) {
  word <<= 16;
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
}
__device__ __forceinline__ float high_of(uint32_t word) {
  word &= 0xFFFF0000u;
  float value;
  memcpy(&value, &word, sizeof value);
  return value;
}

// sums += left right.
__device__ __forceinline__ void multiply(const LeftFragment& left, const RightFragment& right,
                                         ResultFragment& sums,
                                         [[maybe_unused]] MatrixSite site = LINNET_MATRIX_SITE) {
#if defined(__CUDA_ARCH__)
  // volatile: all lanes of the warp must come here together, so it may not move behind a branch.
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums.values[0]), "+f"(sums.values[1]), "+f"(sums.values[2]), "+f"(sums.values[3])
      : "r"(left.words[0]), "r"(left.words[1]), "r"(left.words[2]), "r"(left.words[3]),
        "r"(right.words[0]), "r"(right.words[1]));
#elif !defined(__CUDACC__)
  emulation::mma_16x8x16(site, left.words, right.words, sums.values);
#endif
}

// Two neighbouring results [16,8] as a left operand [16,16].
__device__ __forceinline__ LeftFragment as_left(const ResultFragment& first,
                                                const ResultFragment& second) {
  return {{pack(first.values[0], first.values[1]), pack(first.values[2], first.values[3]),
           pack(second.values[0], second.values[1]), pack(second.values[2], second.values[3])}};
}

// Four 8 x 8 matrices, of which lane l gives the address of row l % 8 of matrix l / 8.
template <bool transposed>
__device__ __forceinline__ void load_matrices(const kernel_bf16* row, uint32_t (&words)[4],
                                              [[maybe_unused]] MatrixSite site) {
#if defined(__CUDA_ARCH__)
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  }
#elif !defined(__CUDACC__)
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
    emulation::fail("%s:%d: a matrix row that does not begin on 16 bytes", site.file, site.line);
  }
  uint32_t mine[4];
  std::memcpy(mine, row, sizeof mine);
  emulation::deal_matrices(site, mine, transposed, words);
#endif
}

// The left operand tile[0..15][0..15].
__device__ __forceinline__ LeftFragment load_left(const kernel_bf16* tile, int stride, int lane,
                                                  MatrixSite site = LINNET_MATRIX_SITE) {
  LeftFragment result;
  load_matrices<false>(tile + lane % 16 * stride + lane / 16 * 8, result.words, site);
  return result;
}
// The same of the transpose: left[r][k] = tile[k][r].
__device__ __forceinline__ LeftFragment load_left_transposed(const kernel_bf16* tile, int stride,
                                                             int lane,
                                                             MatrixSite site = LINNET_MATRIX_SITE) {
  LeftFragment result;
  load_matrices<true>(tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8, result.words,
                      site);
  return result;
}

// Two neighbouring right operands, columns 0 to 7 and 8 to 15 of a [16,16].
struct RightFragments {
  RightFragment halves[2];
};
// right[k][n] = tile[k][n].
__device__ __forceinline__ RightFragments load_right(const kernel_bf16* tile, int stride, int lane,
                                                     MatrixSite site = LINNET_MATRIX_SITE) {
  uint32_t words[4];
  load_matrices<true>(tile + lane % 16 * stride + lane / 16 * 8, words, site);
  return {{{{words[0], words[1]}}, {{words[2], words[3]}}}};
}
// right[k][n] = tile[n][k].
__device__ __forceinline__ RightFragments load_right_transposed(
    const kernel_bf16* tile, int stride, int lane, MatrixSite site = LINNET_MATRIX_SITE) {
  uint32_t words[4];
  load_matrices<false>(tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8, words, site);
  return {{{{words[0], words[1]}}, {{words[2], words[3]}}}};
}

#undef LINNET_MATRIX_SITE

}  // namespace linnet::cuda
