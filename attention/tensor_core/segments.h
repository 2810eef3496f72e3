// Segments of rows, for kernels on tensor cores. Causal: who in a chunk of tokens sees whom in
// squares of weights, in the state before or after the chunk, and in the chunk's own sums.
// Noncausal: spans of tokens as sequences of their own.
#pragma once

#include <bit>

#include "core/cuda/mma.h"
#include "core/sequence_view.h"

namespace linnet::cuda::tensor_core {

__device__ __forceinline__ int count_bits(uint64_t bits) {
  return __popc(static_cast<unsigned>(bits)) + __popc(static_cast<unsigned>(bits >> 32));
}
// Bits 0 to count - 1.
__device__ __forceinline__ uint64_t bits_below(int count) {
  if (count <= 0) return 0;
  return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}
// -1: none is set.
__device__ __forceinline__ int highest_bit(uint64_t bits) {
#if defined(__CUDA_ARCH__)
  return 63 - __clzll(static_cast<long long>(bits));
#else
  return 63 - std::countl_zero(bits);
#endif
}
// 64: none is set.
__device__ __forceinline__ int lowest_bit(uint64_t bits) {
#if defined(__CUDA_ARCH__)
  return __clzll(static_cast<long long>(__brevll(bits)));
#else
  return std::countr_zero(bits);
#endif
}

// Whether a token begins a segment inside its row; ids [B,T], null: one segment per row.
__device__ __forceinline__ bool begins_segment(const int32_t* ids, int64_t row, int64_t time,
                                               int64_t token) {
  if (ids == nullptr || token == 0 || token >= time) return false;
  const int64_t at = row * time + token;
  return ids[at] != ids[at - 1];
}

// Where segments begin in a chunk: bit t for token t. The tokens before the first one continue the
// last segment before the chunk.
struct SegmentBits {
  static constexpr int kWords = 2;  // of a chunk, in shared memory
  uint64_t begins = 0;

  // By all warps of the block, of which thread t knows whether token t begins a segment; a barrier
  // must follow.
  template <typename Team>
  __device__ __forceinline__ static void publish(uint32_t* words, bool begins_one) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const uint32_t mine = __ballot_sync(~0u, begins_one ? 1 : 0);
    if (threadIdx.x % 32 == 0 && warp < kWords) words[warp] = warp * 32 < Team::kTokens ? mine : 0;
  }
  __device__ __forceinline__ void load(const uint32_t* words) {
    begins = words[0] | static_cast<uint64_t>(words[1]) << 32;
  }

  // The first token of the chunk that is in the segment of `token`; -1: it began before the chunk.
  __device__ __forceinline__ int start(int token) const {
    return highest_bit(begins & bits_below(token + 1));
  }
  // Of tokens `first` and `first` + 8, the rows of a warp's results.
  __device__ __forceinline__ void find_starts(int first, int (&starts)[2]) const {
    for (int half = 0; half < 2; ++half) starts[half] = start(first + 8 * half);
  }
  // The first token of the chunk's last segment; 0 where none begins.
  __device__ __forceinline__ int last_start() const { return max(highest_bit(begins), 0); }
  // The first token of the chunk after the segment of `token`; 64: none.
  __device__ __forceinline__ int end(int token) const {
    return lowest_bit(begins & ~bits_below(token + 1));
  }
  // As find_starts.
  __device__ __forceinline__ void find_ends(int first, int (&ends)[2]) const {
    for (int half = 0; half < 2; ++half) ends[half] = end(first + 8 * half);
  }
};

// Sets to 0 the elements of a square [16,16] of results, whose columns are tokens from `first` on,
// that are not in [from, to) of their row: row lane / 4 and the row 8 after.
__device__ __forceinline__ void keep_between(ResultFragment (&square)[2], int first,
                                             const int (&from)[2], const int (&to)[2], int lane) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int token = first + i / 4 * 8 + lane % 4 * 2 + i % 2, half = i % 4 / 2;
    if (token < from[half] || token >= to[half]) square[i / 4].values[i % 4] = 0;
  }
}
// The same of a left operand [16,16].
__device__ __forceinline__ void keep_between(LeftFragment& square, int first, const int (&from)[2],
                                             const int (&to)[2], int lane) {
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const int token = first + word / 2 * 8 + lane % 4 * 2, half = word % 2;
    if (token < from[half] || token >= to[half]) square.words[word] &= 0xFFFF0000u;
    if (token + 1 < from[half] || token + 1 >= to[half]) square.words[word] &= 0xFFFFu;
  }
}

// Sets to 0 the rows of left operands that are not kept: row lane / 4 and the row 8 after.
template <int count>
__device__ __forceinline__ void keep_rows(LeftFragment (&fragments)[count], const bool (&keep)[2]) {
#pragma unroll
  for (int i = 0; i < count; ++i) {
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      if (!keep[word % 2]) fragments[i].words[word] = 0;
    }
  }
}

// Tokens [begin, end) of a row.
struct RowPart {
  int64_t row, begin, end;
};
// Those of state `number`: the span of a table i32 [N,3], or where there is none all `time` tokens
// of row `number`.
__device__ __forceinline__ RowPart part_of_state(const int32_t* spans, int64_t number,
                                                 int64_t time) {
  if (spans == nullptr) return {number, 0, time};
  return {spans[3 * number], spans[3 * number + 1], spans[3 * number + 2]};
}
// Row `part.row` as a sequence of one row that ends where the part does, and its mask.
template <typename T>
__device__ __forceinline__ SequenceView<T> row_view(SequenceView<T> view, const RowPart& part) {
  view.data += part.row * view.batch_stride;
  view.T = part.end;
  return view;
}
__device__ __forceinline__ const uint8_t* row_mask(const uint8_t* mask, int64_t row, int64_t time) {
  return mask == nullptr ? nullptr : mask + row * time;
}

}  // namespace linnet::cuda::tensor_core
