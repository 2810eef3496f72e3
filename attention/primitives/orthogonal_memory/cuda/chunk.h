// Chunks of 64 tokens in the tensor-core kernels of the orthogonal memory: which codes of a chunk
// are in whose memory. Internal to this folder and that of lavo.
#pragma once

#include "attention/primitives/orthogonal_memory/cuda/fast.h"
#include "attention/tensor_core/state_tile.h"

namespace linnet::cuda::orthogonal_memory_fast {

using namespace tensor_core;
static_assert(kChunkTokens == kChunk);

// One token's bits: it begins a segment inside the row; its code counts.
struct TokenFlags {
  bool first = false, counted = false;

  __device__ __forceinline__ void load(const Inputs& in, int64_t row, int64_t token) {
    first = counted = false;
    if (token >= in.f.T) return;
    const int64_t at = row * in.f.T + token;
    first = token > 0 && in.segments != nullptr && in.segments[at] != in.segments[at - 1];
    counted = is_set(in.code_mask, at);
  }
  // By all lanes of warps 0 and 1: words 2 warp and 2 warp + 1 of `to`.
  __device__ __forceinline__ void publish(uint32_t* to, int warp, int lane) const {
    const uint32_t begins = __ballot_sync(~0u, first ? 1 : 0);
    const uint32_t counts = __ballot_sync(~0u, counted ? 1 : 0);
    if (lane == 0) {
      to[2 * warp] = begins;
      to[2 * warp + 1] = counts;
    }
  }
};
inline constexpr int kFlagWords = 4;  // of a chunk

// Which codes of a chunk its tokens read; the same in all threads.
struct Chunk {
  uint64_t firsts, counted;  // bit t: of token t
  int length;                // tokens
  int phase;                 // position of token 0 in its window, if it does not begin a segment
  int window;
  bool inclusive;

  __device__ __forceinline__ void read(const uint32_t* words) {
    firsts = words[0] | static_cast<uint64_t>(words[2]) << 32;
    counted = words[1] | static_cast<uint64_t>(words[3]) << 32;
  }
  __device__ __forceinline__ bool begins_segment(int t) const { return (firsts >> t & 1) != 0; }
  // Where the segment of token t begins; -1: before the chunk.
  __device__ __forceinline__ int segment_begin(int t) const {
    return highest_bit(firsts & bits_below(t + 1));
  }
  // The token of the chunk after the segment of token t.
  __device__ __forceinline__ int segment_end(int t) const {
    return min(length, lowest_bit(firsts & ~bits_below(t + 1)));
  }
  // Where its window begins; below 0: before the chunk. t = length: of the token after the chunk,
  // if it does not begin a segment.
  __device__ __forceinline__ int window_begin(int t) const {
    const int segment = segment_begin(t);
    return t - (segment >= 0 ? t - segment : phase + t) % window;
  }
  __device__ __forceinline__ int counted_between(int begin, int end) const {
    return count_bits(counted & bits_below(end) & ~bits_below(begin));
  }
  // Whether no segment begins and windows end with groups of 8 tokens only, as in most chunks:
  // scans then ask once for each group.
  __device__ __forceinline__ bool is_even() const {
    return firsts == 0 && length == kChunk && (window | phase) % 8 == 0;
  }
};

// Tokens that count before a chunk, in completed windows and in the open one. Whole: in the segment
// that reaches into the chunk and in the one that reaches out of it.
struct TokenCounts {
  int64_t completed, partial;

  // In all of the segment of token t.
  __device__ __forceinline__ int64_t seen_by_segment(const Chunk& chunk, int t) const {
    const int begin = chunk.segment_begin(t), end = chunk.segment_end(t);
    if (begin < 0) return completed;
    return end == chunk.length ? partial : chunk.counted_between(begin, end);
  }

  // In the memory that token t reads.
  __device__ __forceinline__ int64_t seen_by(const Chunk& chunk, int t) const {
    return before(chunk, t, chunk.window_begin(t) + (chunk.inclusive ? 1 : 0));
  }
  // From before a chunk to after it.
  __device__ __forceinline__ void advance(const Chunk& chunk) {
    const int end = chunk.length, window = chunk.window_begin(end);
    const bool continues = chunk.segment_begin(end) < 0 && window <= 0;
    const int64_t open = (continues ? partial : 0) + chunk.counted_between(window, end);
    completed = before(chunk, end, window);
    partial = open;
  }

 private:
  // In the segment of t, up to token `end`.
  __device__ __forceinline__ int64_t before(const Chunk& chunk, int t, int end) const {
    const int segment = chunk.segment_begin(t);
    const int64_t own = chunk.counted_between(segment, end);
    return segment >= 0 ? own : own + completed + (end > 0 ? partial : 0);
  }
};

}  // namespace linnet::cuda::orthogonal_memory_fast
