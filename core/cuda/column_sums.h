// Sums over the rows of a matrix: a block takes some of the rows of columns beside each other, of
// which a thread has one or, where rows are read 16 bytes at a time, eight.
#pragma once

#include "core/cuda/vectors.h"

namespace linnet::cuda {

constexpr int kColumnThreads = 32;  // threadIdx.x of a block
constexpr int kRowThreads = 8;      // threadIdx.y: threads that share columns

// The columns that a block takes.
__host__ __device__ constexpr int columns_of_block(bool in_vectors) {
  return kColumnThreads * (in_vectors ? 8 : 1);
}

// `sums` sums for every column of a block.
template <int sums>
class ColumnSums {
 public:
  __host__ __device__ ColumnSums(SharedArena& arena, bool in_vectors)
      : values_(arena.take<float>(
            static_cast<size_t>(sums * kRowThreads * columns_of_block(in_vectors)))) {}

  // Adds what the threads of each column have found, in the order of threadIdx.y, and writes the
  // sums to to[s][column], unless to[s] is null: `first` is the block's first column, of `columns`
  // in all. All threads take part.
  template <int count>
  __device__ __forceinline__ void write(const float (&totals)[sums][count], int64_t first,
                                        int64_t columns, float* const (&to)[sums]) const {
    constexpr int kColumns = kColumnThreads * count;
#pragma unroll
    for (int s = 0; s < sums; ++s) {
      const int row = s * kRowThreads + static_cast<int>(threadIdx.y);
      store_vector(values_ + row * kColumns + static_cast<int>(threadIdx.x) * count, totals[s]);
    }
    __syncthreads();
    const int thread = static_cast<int>(threadIdx.y * kColumnThreads + threadIdx.x);
    if (thread >= kColumns || first + thread >= columns) return;
#pragma unroll
    for (int s = 0; s < sums; ++s) {
      if (to[s] == nullptr) continue;
      const float* of_rows = values_ + s * kRowThreads * kColumns + thread;
      float total = of_rows[0];
#pragma unroll
      for (int row = 1; row < kRowThreads; ++row) total += of_rows[row * kColumns];
      to[s][first + thread] = total;
    }
  }

 private:
  float* values_;
};

}  // namespace linnet::cuda
