// Runs of LAVO's forward pass and of its memory's backward pass: how many, and the memory before
// each, or its gradients after each.
#include "attention/lavo/cuda/lavo_pass_fast.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda::lavo_pass_fast {
namespace {

namespace memory = orthogonal_memory_fast;

// What the passes for the sums of runs take of those that they are for: their shares of the
// instructions at heads of 64 (tools/kernel_model: 1,460 of 2,500, 2,260 of 3,310).
constexpr int64_t kForwardEighths = 5, kBackwardEighths = 6;

// Backward in time: gradients of the sums after the last run, and what tells in which runs windows
// end. `phases` null: forward in time.
struct Reversed {
  const float *completed = nullptr, *partial = nullptr;  // [B,H,r]; null: zeros
  const int32_t* phases = nullptr;                       // [B,chunks], of windows
  int64_t chunks = 0, run_chunks = 0, tokens = 0, window = 0, sums_of_row = 1;

  __device__ bool has_window_end(int64_t sum, int64_t run) const {
    const int64_t first = run * run_chunks, begin = first * memory::kChunkTokens;
    const int64_t count = min(tokens - begin, run_chunks * memory::kChunkTokens);
    return phases[sum / sums_of_row * chunks + first] + count >= window;
  }
};

// From what runs add to `size` sums, every `step`, to the sums before each of `runs` runs. Windows
// are shorter than runs, so that the one that is open before a run ends in it. Backward in time,
// from what all runs but the first add to gradients of sums to those after each run: codes of the
// window that is open before a run get what is left of all codes after that window.
template <typename T>
void add_up(const T* completed_of, const T* partial_of, int64_t step, T* completed, T* partial,
            int64_t size, int64_t runs, const Reversed& reversed = {}) {
  for_each("lavo_pass_starts", size, [=] __device__(int64_t i) {
    T before = 0, open = 0;
    if (reversed.phases != nullptr) {
      if (reversed.completed != nullptr) before = static_cast<T>(reversed.completed[i]);
      if (reversed.partial != nullptr) open = static_cast<T>(reversed.partial[i]);
      for (int64_t run = runs - 1;; --run) {
        const int64_t at = run * size + i;
        completed[at] = before;
        partial[at] = open;
        if (run == 0) return;
        if (reversed.has_window_end(i, run)) open = before + partial_of[at - size];
        before += completed_of[at - size];
      }
    }
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
  const memory::Reads& q = call.memory.q;
  if (call.memory.segments != nullptr) return {};
  return memory::chunk_runs(q.B * q.H, q.T, forward_blocks(q.K) * memory::kMultiprocessors,
                            kForwardEighths);
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

memory::ChunkRuns backward_runs(const memory::Backward& call) {
  if (call.segments != nullptr) return {};
  return memory::chunk_runs(call.q.B * call.q.H, call.q.T,
                            memory::backward_blocks(call.q.K) * memory::kMultiprocessors,
                            kBackwardEighths);
}

RunStarts start_runs(memory::Backward& call, Device device) {
  call.split = backward_runs(call);
  const int64_t runs = call.split.runs, size = call.q.B * call.q.H * call.rank;
  if (runs == 1) return {};
  const auto room = [&](int64_t of_runs) {
    return RunStarts{Tensor::empty({of_runs, size}, DType::f32, device),
                     Tensor::empty({of_runs, size}, DType::f32, device), Tensor()};
  };
  const RunStarts added = room(runs - 1), after = room(runs);
  memory::Backward sums = call;
  sums.sums_only = true;
  sums.dcompleted_out = sums.dpartial_out = nullptr;
  sums.dcompleted = pointer<float>(added.completed);
  sums.dpartial = pointer<float>(added.partial);
  memory::backward(sums);
  add_up(pointer<const float>(added.completed), pointer<const float>(added.partial), 1,
         pointer<float>(after.completed), pointer<float>(after.partial), size, runs,
         {call.dcompleted_out, call.dpartial_out, call.saved.phases, call.chunks(),
          call.split.chunks, call.q.T, call.window, call.q.H * call.rank});
  call.dcompleted_out = pointer<const float>(after.completed);
  call.dpartial_out = pointer<const float>(after.partial);
  return after;
}

}  // namespace linnet::cuda::lavo_pass_fast
