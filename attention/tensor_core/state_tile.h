// A state [M,N] that a block keeps in registers from chunk to chunk, summed on tensor cores from
// tiles in shared memory.
#pragma once

#include "attention/tensor_core/fragments.h"
#include "attention/tensor_core/segments.h"
#include "attention/tensor_core/tile_copies.h"

namespace linnet::cuda::tensor_core {

// Which of the states in device memory, [features,values] each, and its first column in a tile.
struct StatePlace {
  int64_t number;
  int features, values, column;

  __device__ __forceinline__ bool inside(int row, int at) const {
    return row < features && column + at < values;
  }
  __device__ __forceinline__ int64_t offset(int row, int at) const {
    return (number * features + row) * values + column + at;
  }
};

// A tile of the state: S [M,N] = sum of left_t right_t^T, in the registers of the block's warps,
// and z [M] = sum of left_t. Every warp has kRows x 16 rows and kColumns x 8 columns. In device
// memory it may be narrower: rows and columns beyond are zeros, and are not stored.
template <int M, int N, typename Team = FourWarps>
struct StateTile {
  static constexpr int kWarpRows = M / 16 < 4 ? M / 16 : 4;
  static constexpr int kWarpColumns =
      Team::kWarps / kWarpRows < N / 16 ? Team::kWarps / kWarpRows : N / 16;
  static constexpr int kRows = M / 16 / kWarpRows;
  static constexpr int kColumns = N / 8 / kWarpColumns;
  static constexpr int kStride = N + kPadding;

  ResultFragment memory[kRows][kColumns];
  ResultFragment mass[kRows];
  int warp, lane;

  // Warps beyond have no part in the state.
  __device__ __forceinline__ bool has_part() const { return warp < kWarpRows * kWarpColumns; }
  __device__ __forceinline__ int row(int i, int half) const {
    return (warp % kWarpRows * kRows + i) * 16 + half * 8 + lane / 4;
  }
  __device__ __forceinline__ int column(int j) const {
    return (warp / kWarpRows * kColumns + j) * 8 + lane % 4 * 2;
  }

  // State `at.number` of S and z in device memory, columns from `at.column` on; null: zeros.
  __device__ __forceinline__ void load(const float* from, const float* from_mass,
                                       const StatePlace& at) {
    warp = static_cast<int>(threadIdx.x) / 32;
    lane = static_cast<int>(threadIdx.x) % 32;
    visit([&](int i, int j, int half, int odd, int at_row, int at_column) {
      const bool given = has_part() && from != nullptr && at.inside(at_row, at_column);
      memory[i][j].values[half * 2 + odd] = given ? from[at.offset(at_row, at_column)] : 0.0f;
    });
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int value = 0; value < 4; ++value) {
        const int at_row = row(i, value / 2);
        const bool given = has_part() && from_mass != nullptr && at_row < at.features;
        mass[i].values[value] = given ? from_mass[at.number * at.features + at_row] : 0.0f;
      }
    }
  }

  // S to device memory; null: not wanted.
  __device__ __forceinline__ void store(float* to, const StatePlace& at) const {
    if (!has_part() || to == nullptr) return;
    visit([&](int i, int j, int half, int odd, int at_row, int at_column) {
      if (!at.inside(at_row, at_column)) return;
      to[at.offset(at_row, at_column)] = memory[i][j].values[half * 2 + odd];
    });
  }

  // z to shared memory, or with so many features to device memory; one warp has each row.
  __device__ __forceinline__ void store_normalizer(float* to, int features = M) const {
    if (warp >= kWarpRows || lane % 4 != 0) return;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (row(i, half) < features) to[row(i, half)] = mass[i].values[2 * half];
      }
    }
  }

  // S in bf16, as products read it: shared [M][kStride].
  __device__ __forceinline__ void publish(kernel_bf16* to) const {
    publish(to, [](float value) { return value; });
  }
  // The part that publish() rounds away, so that both together have 16 bits of S.
  __device__ __forceinline__ void publish_rest(kernel_bf16* to) const {
    publish(to, [](float value) { return value - low_of(pack(value, 0)); });
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      mass[i] = {};
#pragma unroll
      for (int j = 0; j < kColumns; ++j) memory[i][j] = {};
    }
  }

  __device__ __forceinline__ void scale(float factor) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int value = 0; value < 4; ++value) mass[i].values[value] *= factor;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int value = 0; value < 4; ++value) memory[i][j].values[value] *= factor;
      }
    }
  }

  // This lane's part of the inner product with state `at.number` of `other`, normalizers left out.
  __device__ __forceinline__ float inner_product(const float* other, const StatePlace& at) const {
    float sum = 0;
    if (!has_part()) return sum;
    visit([&](int i, int j, int half, int odd, int at_row, int at_column) {
      if (!at.inside(at_row, at_column)) return;
      sum += memory[i][j].values[half * 2 + odd] * other[at.offset(at_row, at_column)];
    });
    return sum;
  }

  // Adds tokens [from, to) of a chunk: left [tokens][M + padding], right [tokens][N + padding] in
  // shared memory; where `scaled` token t of the left counts factors[t] times. Products cut their
  // sums off where additions round them, so that in a long sequence all errors would have one sign:
  // sums over 32 tokens begin at 0 and are added as floats.
  template <bool with_normalizer, bool scaled = false>
  __device__ __forceinline__ void add(const kernel_bf16* left, const kernel_bf16* right,
                                      int from = 0, int to = Team::kTokens,
                                      [[maybe_unused]] const float* factors = nullptr) {
    if (!has_part()) return;
    constexpr int kLeftStride = M + kPadding, kRightStride = N + kPadding;
    const kernel_bf16* first = left + warp % kWarpRows * kRows * 16;
    const kernel_bf16* second = right + warp / kWarpRows * kColumns * 8;
#pragma unroll 1  // registers
    for (int base = from / 32 * 32; base < to; base += 32) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        LeftFragment lefts[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int token = base + 16 * half;
          lefts[half] =
              load_left_transposed(first + token * kLeftStride + i * 16, kLeftStride, lane);
          if (token < from || token + 16 > to) {
            keep_between(lefts[half], token, {from, from}, {to, to}, lane);
          }
          if constexpr (scaled) scale_columns(lefts[half], factors + token, lane);
        }
#pragma unroll
        for (int j = 0; j < kColumns / 2; ++j) {
          ResultFragment sums[2] = {};
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const RightFragments rights =
                load_right(second + (base + 16 * half) * kRightStride + j * 16, kRightStride, lane);
            multiply(lefts[half], rights.halves[0], sums[0]);
            multiply(lefts[half], rights.halves[1], sums[1]);
          }
          memory[i][2 * j] += sums[0];
          memory[i][2 * j + 1] += sums[1];
        }
        if constexpr (with_normalizer) {
          ResultFragment sums = {};
          multiply(lefts[0], ones(), sums);
          multiply(lefts[1], ones(), sums);
          mass[i] += sums;
        }
      }
    }
  }

 private:
  template <typename Part>
  __device__ __forceinline__ void publish(kernel_bf16* to, const Part& part) const {
    if (!has_part()) return;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          auto* at = reinterpret_cast<uint32_t*>(to + row(i, half) * kStride + column(j));
          const float* pair = memory[i][j].values + 2 * half;
          *at = pack(part(pair[0]), part(pair[1]));
        }
      }
    }
  }

  // Calls visitor(i, j, half, odd, row, column) for every element of memory that this lane has.
  template <typename Visitor>
  __device__ __forceinline__ void visit(const Visitor& visitor) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
          visitor(i, j, part / 2, part % 2, row(i, part / 2), column(j) + part % 2);
        }
      }
    }
  }
};

}  // namespace linnet::cuda::tensor_core
