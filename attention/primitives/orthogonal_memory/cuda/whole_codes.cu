// Memories of whole segments, code by code: sums over the edges of chunks, and gradients to all
// codes of an edge. A block has a chunk of a row, a thread 8 neighbouring channels of its codes.
#include "attention/primitives/orthogonal_memory/cuda/chunk.h"
#include "attention/primitives/orthogonal_memory/cuda/whole.h"

namespace linnet::cuda::orthogonal_memory_fast {
namespace {

struct Words {
  __host__ __device__ explicit Words(SharedArena& arena)
      : flags(arena.take<uint32_t>(kFlagWords)) {}
  uint32_t* flags;
};

// The chunk of a block and the channels of a thread.
struct Place {
  int64_t row, number;
  int head, channel;
  bool inside;
  Chunk chunk;
  int first, last;  // where the first and the last segment begin; 64, -1: none does

  __device__ __forceinline__ Place(const Inputs& in, const Words& words)
      : row(blockIdx.x / in.chunks()), number(blockIdx.x % in.chunks()), chunk{0, 0, 0,
                                                                               0, 1, false} {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < kChunk) {
      TokenFlags flags;
      flags.load(in, row, number * kChunk + thread);
      flags.publish(words.flags, thread / 32, thread % 32);
    }
    __syncthreads();  // flags are there
    chunk.read(words.flags);
    chunk.length = static_cast<int>(min(int64_t{kChunk}, in.f.T - number * kChunk));
    first = lowest_bit(chunk.firsts);
    last = highest_bit(chunk.firsts);
    const int64_t column = (int64_t{blockIdx.y} * kTileThreads + thread) * 8;
    inside = column < in.f.H * in.f.K;
    head = static_cast<int>(column / in.f.K);
    channel = static_cast<int>(column % in.f.K);
  }
  // For a token: 0 where its segment reaches into the chunk, 1 where it reaches out of it, -1
  // otherwise.
  __device__ __forceinline__ int edge(int t) const {
    if (t < first) return 0;
    return t >= last ? 1 : -1;
  }
  __device__ __forceinline__ bool counts(int t) const { return (chunk.counted >> t & 1) != 0; }
};

__global__ __launch_bounds__(kTileThreads) void orthogonal_memory_edge_sums(Inputs in) {
  SharedArena arena;
  const Words words(arena);
  const Place at(in, words);
  const int64_t entry = blockIdx.x;
  if (blockIdx.y == 0 && threadIdx.x == 0) {
    int32_t* to = in.saved.edge_counts + 3 * entry;
    const bool begins = at.last >= 0;
    to[0] = at.chunk.counted_between(0, at.first);
    to[1] = begins ? at.chunk.counted_between(at.last, kChunk) : 0;
    to[2] = begins ? 1 : 0;
  }
  if (!at.inside) return;
  float sums[2][8] = {};
  for (int begin = 0; begin < at.chunk.length; begin += 8) {
    Eight codes[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int t = begin + i;
      codes[i] = {};
      if (!at.counts(t) || at.edge(t) < 0) continue;
      codes[i] = *reinterpret_cast<const Eight*>(in.f.data + at.row * in.f.batch_stride +
                                                 (at.number * kChunk + t) * in.f.time_stride +
                                                 at.head * in.f.head_stride + at.channel);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const bool reaches_out = at.edge(begin + i) == 1;
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const uint32_t word = codes[i].words[c / 2];
        const float code = c % 2 == 0 ? low_of(word) : high_of(word);
        sums[0][c] += reaches_out ? 0.0f : code;
        sums[1][c] += reaches_out ? code : 0.0f;
      }
    }
  }
  float* to = in.saved.edges + (entry * in.f.H + at.head) * 2 * in.f.K + at.channel;
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    to[c] = sums[0][c];
    to[in.f.K + c] = sums[1][c];
  }
}

__global__ __launch_bounds__(kTileThreads) void orthogonal_memory_spread_gradients(
    Inputs in, Writes df, const float* gradients) {
  SharedArena arena;
  const Words words(arena);
  const Place at(in, words);
  if (!at.inside) return;
  const float* from = gradients +
                      (in.entry(at.row, in.chunks(), at.number) * df.H + at.head) * 2 * df.K +
                      at.channel;
  Eight own[2];
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    own[0].words[word] = pack(from[2 * word], from[2 * word + 1]);
    own[1].words[word] = 0;
    if (at.last < 0) continue;
    own[1].words[word] = pack(from[df.K + 2 * word], from[df.K + 2 * word + 1]);
  }
  for (int t = 0; t < at.chunk.length; ++t) {
    const int edge = at.edge(t);
    if (edge < 0) continue;
    const bool counts = at.counts(t);
    Eight gradient;
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const uint32_t both = edge == 1 ? own[1].words[word] : own[0].words[word];
      gradient.words[word] = counts ? both : 0;
    }
    *reinterpret_cast<Eight*>(df.data + at.row * df.batch_stride +
                              (at.number * kChunk + t) * df.time_stride + at.head * df.head_stride +
                              at.channel) = gradient;
  }
}

Launch launch_of(const char* name, const Inputs& in) {
  const int64_t columns = in.f.H * in.f.K / 8;
  return {name,
          dim3(blocks_for(in.f.B * in.chunks(), 1),
               static_cast<unsigned>((columns + kTileThreads - 1) / kTileThreads)),
          kTileThreads, shared_bytes<Words>()};
}

}  // namespace

void edge_sums(const Inputs& in) {
  launch(launch_of("orthogonal_memory_edge_sums", in), orthogonal_memory_edge_sums, in);
}

void spread_gradients(const Backward& call, const float* dcodes) {
  launch(launch_of("orthogonal_memory_spread_gradients", call), orthogonal_memory_spread_gradients,
         call, call.df, dcodes);
}

}  // namespace linnet::cuda::orthogonal_memory_fast
