// Memories of whole segments, segment by segment: from sums over the edges of chunks to those of
// segments, and back. A block has a head of a row and scans its chunks.
#include "attention/primitives/orthogonal_memory/cuda/chunk.h"
#include "attention/primitives/orthogonal_memory/cuda/whole.h"

namespace linnet::cuda::orthogonal_memory_fast {
namespace {

struct Layout {
  __host__ __device__ Layout(SharedArena& arena, int64_t width, int64_t rank)
      : codes(arena.take<float>(static_cast<size_t>(width))),
        sums(arena.take<float>(static_cast<size_t>(rank))) {}
  float *codes, *sums;
};

// A segment that no chunk holds: it begins in chunk `from` (-1: with the row), ends in chunk `to`;
// the last one ends with the row.
struct Segment {
  int64_t from, to;
  bool is_last;
};

// Calls body for those of a row, in order; one where there are no segments. counts are
// Saved::edge_counts.
template <typename Body>
__device__ __forceinline__ void visit_segments(const int32_t* counts, int64_t chunks,
                                               bool has_segments, const Body& body) {
  Segment segment{-1, -1, false};
  while (!segment.is_last) {
    segment.from = segment.to;
    ++segment.to;
    while (has_segments && segment.to < chunks && counts[3 * segment.to + 2] == 0) ++segment.to;
    segment.is_last = !has_segments || segment.to >= chunks;
    if (segment.is_last) segment.to = chunks - 1;
    body(segment);
  }
}

// The sum over a segment of element i of the edges [chunks,H,2,width] of a row.
__device__ __forceinline__ float sum_of(const float* edges, int64_t heads, int64_t head,
                                        int64_t width, const Segment& segment, int64_t i) {
  const auto at = [&](int64_t chunk, int64_t edge) {
    return edges[((chunk * heads + head) * 2 + edge) * width + i];
  };
  float sum = segment.from >= 0 ? at(segment.from, 1) : 0.0f;
#pragma unroll 8
  for (int64_t chunk = segment.from + 1; chunk <= segment.to; ++chunk) sum += at(chunk, 0);
  return sum;
}

// Calls write(entry, edge) for the edges of a segment; for the row's entry where there are no
// segments.
template <typename Write>
__device__ __forceinline__ void visit_edges(const Inputs& in, int64_t row, int64_t chunks,
                                            const Segment& segment, const Write& write) {
  if (!in.reads_codes()) return write(row, 0);
  if (segment.from >= 0) write(row * chunks + segment.from, 1);
  for (int64_t chunk = segment.from + 1; chunk <= segment.to; ++chunk) {
    write(row * chunks + chunk, 0);
  }
}

__global__ __launch_bounds__(kTileThreads) void orthogonal_memory_whole_totals(
    const __grid_constant__ Forward a) {
  SharedArena arena;
  const Layout shared(arena, a.f.K, a.rank);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t heads = a.f.H, head = blockIdx.x % heads, row = blockIdx.x / heads;
  const int64_t width = a.f.K, rank = a.rank, number = int64_t{blockIdx.x} * rank + thread;
  const int64_t chunks = a.chunks();
  const float* codes = a.saved.edges + row * chunks * heads * 2 * width;
  const int32_t* counts = a.saved.edge_counts + row * chunks * 3;
  visit_segments(counts, chunks, a.reads_codes(), [&](const Segment& segment) {
    const bool carries_in = segment.from < 0 && a.completed != nullptr;
    if (thread < width) shared.codes[thread] = sum_of(codes, heads, head, width, segment, thread);
    if (head == 0 && thread == 0) {
      int64_t count = carries_in ? a.counts[2 * row] : 0;
      if (segment.from >= 0) count += counts[3 * segment.from + 1];
      for (int64_t chunk = segment.from + 1; chunk <= segment.to; ++chunk) {
        count += counts[3 * chunk];
      }
      visit_edges(a, row, chunks, segment,
                  [&](int64_t entry, int64_t edge) { a.saved.counts[2 * entry + edge] = count; });
      if (segment.is_last) {
        a.counts_out[2 * row] = count;
        a.counts_out[2 * row + 1] = 0;
      }
    }
    __syncthreads();  // the segment's sum is there
    if (thread < rank) {
      const float* basis = a.basis + (head * rank + thread) * width;
      float sum = 0;
      for (int64_t c = 0; c < width; ++c) sum += basis[c] * shared.codes[c];
      if (carries_in) sum += a.completed[number];
      visit_edges(a, row, chunks, segment, [&](int64_t entry, int64_t edge) {
        a.saved.sums[((entry * heads + head) * 2 + edge) * rank + thread] = sum;
      });
      if (segment.is_last) {
        a.completed_out[number] = sum;
        a.partial_out[number] = 0;
      }
    }
    __syncthreads();  // nobody reads the sum any more
  });
}

__global__ __launch_bounds__(kTileThreads) void orthogonal_memory_whole_gradients(
    const __grid_constant__ Backward a, float* dcodes, float* all_dbasis) {
  SharedArena arena;
  const Layout shared(arena, a.f.K, a.rank);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t heads = a.f.H, head = blockIdx.x % heads, row = blockIdx.x / heads;
  const int64_t width = a.f.K, rank = a.rank;
  const int64_t chunks = a.chunks();
  const float* codes = a.saved.edges + row * chunks * heads * 2 * width;
  const float* dsums = a.dsums + row * a.entries() * heads * 2 * rank;
  const float* basis = a.basis + head * rank * width;
  visit_segments(a.saved.edge_counts + row * chunks * 3, chunks, a.reads_codes(),
                 [&](const Segment& segment) {
                   if (thread < width)
                     shared.codes[thread] = sum_of(codes, heads, head, width, segment, thread);
                   if (thread < rank) {
                     const int64_t number = int64_t{blockIdx.x} * rank + thread;
                     Segment summed = segment;
                     if (!a.reads_codes()) summed.to = a.entries() - 1;  // runs
                     float sum = sum_of(dsums, heads, head, rank, summed, thread);
                     if (segment.is_last && a.dcompleted_out != nullptr)
                       sum += a.dcompleted_out[number];
                     if (segment.from < 0 && a.dcompleted != nullptr) a.dcompleted[number] = sum;
                     shared.sums[thread] = sum;
                   }
                   __syncthreads();  // the segment's sums are there
                   if (thread < width) {
                     float gradient = 0;
                     for (int64_t l = 0; l < rank; ++l)
                       gradient += basis[l * width + thread] * shared.sums[l];
                     visit_edges(a, row, chunks, segment, [&](int64_t entry, int64_t edge) {
                       dcodes[((entry * heads + head) * 2 + edge) * width + thread] = gradient;
                     });
                   }
                   float* dbasis = all_dbasis + int64_t{blockIdx.x} * rank * width;
                   for (int64_t i = thread; i < rank * width; i += kTileThreads) {
                     const float own = shared.sums[i / width] * shared.codes[i % width];
                     dbasis[i] = segment.from < 0 ? own : dbasis[i] + own;
                   }
                   __syncthreads();  // nobody reads the sums any more
                 });
}

}  // namespace

void whole_totals(const Forward& call) {
  launch({"orthogonal_memory_whole_totals", blocks_for(call.f.B * call.f.H, 1), kTileThreads,
          shared_bytes<Layout>(call.f.K, call.rank)},
         orthogonal_memory_whole_totals, call);
}

void whole_gradients(const Backward& call, float* dcodes) {
  float* dbasis = call.dbasis + call.split.runs * call.f.B * call.f.H * call.rank * call.f.K;
  launch({"orthogonal_memory_whole_gradients", blocks_for(call.f.B * call.f.H, 1), kTileThreads,
          shared_bytes<Layout>(call.f.K, call.rank)},
         orthogonal_memory_whole_gradients, call, dcodes, dbasis);
}

}  // namespace linnet::cuda::orthogonal_memory_fast
