// One token of the orthogonal memory: a block has a row's head. Warps take rows of the basis by
// turns for B f and B q, whose lanes are channels, and then their share of the rows for 32 channels
// of y.
#include "attention/primitives/orthogonal_memory/cuda/step.h"

#include "attention/primitives/common/cuda/warp_items.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

constexpr int kStepWarps = 8;
constexpr int kThreads = kStepWarps * kLanes;

struct Step {
  StoredValues q, f;
  const float *basis, *completed, *partial;
  const int64_t* counts;
  const uint8_t *query_mask, *code_mask;
  const int32_t* positions;
  int64_t time_offset, window;  // window 0: the memory is the prefix, the token included
  float scale;
  StoredResults y;
  float *completed_out, *partial_out;
  int64_t *counts_out, *tokens;
  int heads, rank, width;
};

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

  __device__ Place(const Step& a, int64_t row, bool writes, bool keeps) {
    int64_t completed = a.counts != nullptr ? a.counts[2 * row] : 0, partial = 0;
    if (a.window == 0) {
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
__device__ __forceinline__ float add_to_sum(const Step& a, const Place& place, int64_t at,
                                            float projected) {
  float completed = a.completed != nullptr ? a.completed[at] : 0.0f, partial = 0;
  float read = completed;
  if (a.window == 0) {
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

__global__ void orthogonal_memory_one_token(Step a) {
  SharedArena arena;
  const Layout shared(arena, a.rank, a.width);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kLanes, lane = warp_lane();
  const int64_t head = blockIdx.x, row = head / a.heads;
  const float* basis = a.basis + head % a.heads * a.rank * a.width;
  const bool writes = is_set(a.code_mask, row);
  const Place place(a, row, writes, head % a.heads == 0 && thread == 0);
  const bool reads = is_set(a.query_mask, row) && place.seen > 0;
  for (int c = thread; c < a.width; c += kThreads) {
    shared.query[c] = reads ? a.q.at(head * a.width + c) : 0.0f;
    shared.code[c] = writes ? a.f.at(head * a.width + c) : 0.0f;
  }
  __syncthreads();

  const float factor = reads ? 1.0f / static_cast<float>(place.seen) : 0.0f;
  for (int l = warp; l < a.rank; l += kStepWarps) {
    float of_code = 0, of_query = 0;
    for (int c = lane; c < a.width; c += kLanes) {
      const float number = basis[int64_t{l} * a.width + c];
      of_code += number * shared.code[c];
      of_query += number * shared.query[c];
    }
    of_code = warp_sum(of_code);
    of_query = warp_sum(of_query);
    if (lane != 0) continue;
    const float mean = factor * add_to_sum(a, place, head * a.rank + l, of_code);
    shared.means[l] = mean;
    shared.logits[l] = a.scale * mean * of_query;
  }
  __syncthreads();

  float largest = -kInfinity, total = 0;
  for (int l = thread; l < a.rank; l += kThreads) largest = fmaxf(largest, shared.logits[l]);
  largest = block_max(largest, shared.scratch);
  for (int l = thread; l < a.rank; l += kThreads) total += expf(shared.logits[l] - largest);
  total = block_sum(total, shared.scratch);
  for (int l = thread; l < a.rank; l += kThreads) {
    const float weight = expf(shared.logits[l] - largest) / total * shared.means[l];
    shared.logits[l] = reads ? weight : 0.0f;
  }
  __syncthreads();

  for (int first = 0; first < a.width; first += kLanes) {
    const int c = first + lane;
    float sum = 0;
    for (int l = warp; c < a.width && l < a.rank; l += kStepWarps) {
      sum += shared.logits[l] * basis[int64_t{l} * a.width + c];
    }
    shared.sums[thread] = sum;
    __syncthreads();
    if (warp == 0 && c < a.width) {
      float y = 0;
      for (int i = 0; i < kStepWarps; ++i) y += shared.sums[i * kLanes + lane];
      a.y.put(head * a.width + c, y);
    }
    __syncthreads();
  }
}

}  // namespace

bool is_orthogonal_memory_step(const OrthogonalMemoryContext& context,
                               const OrthogonalMemoryArrays& in) {
  const OrthogonalMemoryOptions& options = context.options;
  return in.q.size(1) == 1 && !context.cross && options.scope != MemoryScope::whole &&
         !options.shared && !(options.dropout > 0);
}

void orthogonal_memory_step(const OrthogonalMemoryContext& context,
                            const OrthogonalMemoryArrays& in, const Tensor& y,
                            const OrthogonalMemoryArrays& state_out, const Tensor& memory_tokens) {
  Step a{};
  a.q = stored_values(in.q);
  a.f = stored_values(in.f);
  a.basis = pointer<const float>(in.basis);
  a.completed = pointer_or_null<const float>(in.completed);
  a.partial = pointer_or_null<const float>(in.partial);
  a.counts = pointer_or_null<const int64_t>(in.counts);
  a.query_mask = pointer_or_null<const uint8_t>(context.query_mask);
  a.code_mask = pointer_or_null<const uint8_t>(context.code_mask);
  a.positions = pointer_or_null<const int32_t>(context.positions);
  a.time_offset = context.place.time_offset;
  const bool windows = context.options.scope == MemoryScope::completed_windows;
  a.window = windows ? context.options.window : 0;
  a.scale = static_cast<float>(context.options.scale);
  a.y = stored_results(y);
  a.completed_out = pointer<float>(state_out.completed);
  a.partial_out = pointer<float>(state_out.partial);
  a.counts_out = pointer<int64_t>(state_out.counts);
  a.tokens = pointer<int64_t>(memory_tokens);
  a.heads = static_cast<int>(in.q.size(2));
  a.rank = static_cast<int>(in.basis.size(1));
  a.width = static_cast<int>(in.q.size(3));
  launch({"orthogonal_memory_one_token", blocks_for(in.q.size(0) * a.heads, 1), kThreads,
          shared_bytes<Layout>(a.rank, a.width)},
         orthogonal_memory_one_token, a);
}

}  // namespace linnet::cuda
