// One token of the orthogonal memory: a block has a row's head. Warps take rows of the basis by
// turns for B f and B q, whose lanes are channels, and then their share of the rows for 32 channels
// of y.
#include "attention/primitives/orthogonal_memory/cuda/step.h"

#include "attention/primitives/common/cuda/warp_items.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

using orthogonal_memory_detail::Problem;

constexpr int kStepWarps = 8;
constexpr int kThreads = kStepWarps * kLanes;

struct Layout {
  __host__ __device__ Layout(SharedArena& arena, int rank, int width)
      : query(arena.take<float>(static_cast<size_t>(width))),
        code(arena.take<float>(static_cast<size_t>(width))),
        means(arena.take<float>(static_cast<size_t>(rank))),
        logits(arena.take<float>(static_cast<size_t>(rank))),
        sums(arena.take<float>(kThreads)),
        scratch(arena.take<float>(33)) {}
  float *query, *code;
  float *means, *logits;  // m; scale m (B q), then the softmax of it times m
  float *sums, *scratch;
};

// The token's place: whether a window ends with it, and how many tokens its memory has.
struct Place {
  bool ends = false;
  int64_t seen = 0;

  __device__ Place(const Problem& a, int64_t row, bool writes, bool keeps) {
    int64_t completed = a.counts != nullptr ? a.counts[2 * row] : 0, partial = 0;
    if (a.scope == MemoryScope::prefix) {
      completed += writes ? 1 : 0;
      seen = completed;
    } else {
      const int64_t position = a.positions != nullptr ? a.positions[row] : a.time_offset;
      ends = position % a.window + 1 == a.window;
      seen = completed;
      partial = (a.counts != nullptr ? a.counts[2 * row + 1] : 0) + (writes ? 1 : 0);
      if (ends) {
        completed += partial;
        partial = 0;
      }
    }
    if (!keeps) return;
    a.tokens[row] = seen;
    a.counts_out[2 * row] = completed;
    a.counts_out[2 * row + 1] = partial;
  }
};

// Adds the token's B f to sum l of the head; the token's read of it.
__device__ __forceinline__ float add_to_sum(const Problem& a, const Place& place, int64_t at,
                                            float projected) {
  float completed = a.completed != nullptr ? a.completed[at] : 0.0f, partial = 0;
  float read = completed;
  if (a.scope == MemoryScope::prefix) {
    completed += projected;
    read = completed;
  } else {
    partial = (a.partial != nullptr ? a.partial[at] : 0.0f) + projected;
    if (place.ends) {
      completed += partial;
      partial = 0;
    }
  }
  a.completed_out[at] = completed;
  a.partial_out[at] = partial;
  return read;
}

__global__ void orthogonal_memory_one_token(const __grid_constant__ Problem a, StoredValues q,
                                            StoredValues f, StoredResults y) {
  SharedArena arena;
  const int rank = static_cast<int>(a.rank), width = static_cast<int>(a.width);
  const Layout shared(arena, rank, width);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kLanes, lane = warp_lane();
  const int64_t head = blockIdx.x, row = head / a.heads;
  const float* basis = a.basis + head % a.heads * rank * width;
  const bool writes = is_set(a.code_mask, row);
  const Place place(a, row, writes, head % a.heads == 0 && thread == 0);
  const bool reads = is_set(a.query_mask, row) && place.seen > 0;
  for (int c = thread; c < width; c += kThreads) {
    shared.query[c] = reads ? q.at(head * width + c) : 0.0f;
    shared.code[c] = writes ? f.at(head * width + c) : 0.0f;
  }
  __syncthreads();

  const float factor = reads ? 1.0f / static_cast<float>(place.seen) : 0.0f;
  for (int l = warp; l < rank; l += kStepWarps) {
    float of_code = 0, of_query = 0;
    for (int c = lane; c < width; c += kLanes) {
      const float number = basis[int64_t{l} * width + c];
      of_code += number * shared.code[c];
      of_query += number * shared.query[c];
    }
    of_code = warp_sum(of_code);
    of_query = warp_sum(of_query);
    if (lane != 0) continue;
    const float mean = factor * add_to_sum(a, place, head * rank + l, of_code);
    shared.means[l] = mean;
    shared.logits[l] = a.scale * mean * of_query;
  }
  __syncthreads();

  float largest = -kInfinity, total = 0;
  for (int l = thread; l < rank; l += kThreads) largest = fmaxf(largest, shared.logits[l]);
  largest = block_max(largest, shared.scratch);
  for (int l = thread; l < rank; l += kThreads) total += expf(shared.logits[l] - largest);
  total = block_sum(total, shared.scratch);
  for (int l = thread; l < rank; l += kThreads) {
    const float weight = expf(shared.logits[l] - largest) / total * shared.means[l];
    shared.logits[l] = reads ? weight : 0.0f;
  }
  __syncthreads();

  for (int first = 0; first < width; first += kLanes) {
    const int c = first + lane;
    float sum = 0;
    for (int l = warp; c < width && l < rank; l += kStepWarps) {
      sum += shared.logits[l] * basis[int64_t{l} * width + c];
    }
    shared.sums[thread] = sum;
    __syncthreads();
    if (warp == 0 && c < width) {
      sum = 0;
      for (int i = 0; i < kStepWarps; ++i) sum += shared.sums[i * kLanes + lane];
      y.put(head * width + c, sum);
    }
    __syncthreads();
  }
}

}  // namespace

bool is_orthogonal_memory_step(const OrthogonalMemoryContext& context,
                               const OrthogonalMemoryTensors& in) {
  const OrthogonalMemoryOptions& options = context.options;
  return in.q.size(1) == 1 && !context.cross && options.scope != MemoryScope::whole &&
         !options.shared && !(options.dropout > 0);
}

void orthogonal_memory_step(const Problem& p, const OrthogonalMemoryTensors& in, const Tensor& y) {
  launch({"orthogonal_memory_one_token", blocks_for(p.rows * p.heads, 1), kThreads,
          shared_bytes<Layout>(static_cast<int>(p.rank), static_cast<int>(p.width))},
         orthogonal_memory_one_token, p, stored_values(in.q), stored_values(in.f),
         stored_results(y));
}

}  // namespace linnet::cuda
