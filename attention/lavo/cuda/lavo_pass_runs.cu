// Runs of LAVO's forward pass: how many, and the memory before each.
#include "attention/lavo/cuda/lavo_pass_fast.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda::lavo_pass_fast {
namespace {

// What the pass for the sums before runs takes of the one that they are for: its share of the
// instructions at heads of 64 (tools/kernel_model: 1,460 of 2,500).
constexpr int64_t kStateEighths = 5;

// From what runs add to `size` sums, every `step`, to the sums before each of `runs` runs. Windows
// are shorter than runs, so that the one that is open before a run ends in it.
template <typename T>
void add_up(const T* completed_of, const T* partial_of, int64_t step, T* completed, T* partial,
            int64_t size, int64_t runs) {
  for_each("lavo_pass_starts", size, [=] __device__(int64_t i) {
    T before = 0, open = 0;
    for (int64_t run = 0; run < runs; ++run) {
      const int64_t at = (run * size + i) * step;
      completed[at] = before;
      partial[at] = open;
      if (run + 1 == runs) return;
      before += open + completed_of[at];
      open = partial_of[at];
    }
  });
}

}  // namespace

orthogonal_memory_fast::ChunkRuns forward_runs(const Forward& call) {
  const orthogonal_memory_fast::Reads& q = call.memory.q;
  if (call.memory.segments != nullptr) return {};
  return orthogonal_memory_fast::chunk_runs(
      q.B * q.H, q.T, forward_blocks(q.K) * orthogonal_memory_fast::kMultiprocessors,
      kStateEighths);
}

RunStarts start_runs(Forward& call, Device device) {
  call.memory.split = forward_runs(call);
  const int64_t runs = call.memory.split.runs, B = call.memory.q.B, H = call.memory.q.H;
  if (runs == 1) return {};
  const auto room = [&](int64_t of_runs) {
    const Shape sums{of_runs * B, H, call.memory.rank};
    return RunStarts{Tensor::empty(sums, DType::f32, device),
                     Tensor::empty(sums, DType::f32, device),
                     Tensor::empty({of_runs * B, 2}, DType::i64, device)};
  };
  const RunStarts ends = room(runs - 1), starts = room(runs);
  Forward sums = call;
  sums.memory.completed_out = pointer<float>(ends.completed);
  sums.memory.partial_out = pointer<float>(ends.partial);
  sums.memory.counts_out = pointer<int64_t>(ends.counts);
  sum_runs(sums);
  add_up(pointer<const float>(ends.completed), pointer<const float>(ends.partial), 1,
         pointer<float>(starts.completed), pointer<float>(starts.partial), B * H * call.memory.rank,
         runs);
  add_up(pointer<const int64_t>(ends.counts), pointer<const int64_t>(ends.counts) + 1, 2,
         pointer<int64_t>(starts.counts), pointer<int64_t>(starts.counts) + 1, B, runs);
  call.memory.completed = pointer<const float>(starts.completed);
  call.memory.partial = pointer<const float>(starts.partial);
  call.memory.counts = pointer<const int64_t>(starts.counts);
  return starts;
}

}  // namespace linnet::cuda::lavo_pass_fast
