// Softmax cross-entropy: a block for each row of logits.
#include "autograd/cuda/loss.h"

#include "core/cuda/block_reduce.h"
#include "core/cuda/vectors.h"

namespace linnet::cuda {
namespace {

constexpr int kThreads = 256;

struct Scratch {
  __host__ __device__ explicit Scratch(SharedArena& arena)
      : largest(arena.take<float>(33)), total(arena.take<double>(33)) {}
  float* largest;
  double* total;
};

template <typename T>
__global__ void cross_entropy_rows(T* logits, const int32_t* targets, int64_t classes,
                                   bool in_vectors, double* losses, bool gradient) {
  SharedArena arena;
  const Scratch scratch(arena);
  const int64_t row = blockIdx.x;
  T* line = logits + row * classes;
  const int64_t target = targets[row];
  if (target == -1) {  // the whole block
    if (threadIdx.x == 0) losses[row] = 0;
    for (int64_t c = threadIdx.x; gradient && c < classes; c += kThreads) store(line + c, 0.0f);
    return;
  }
  float top = -INFINITY;
  visit_row<T, kThreads>(classes, threadIdx.x, in_vectors, [&](int64_t c, auto together) {
    float values[together()];
    load_vector(line + c, values);
#pragma unroll
    for (int i = 0; i < together(); ++i) top = fmaxf(top, values[i]);
  });
  top = block_max(top, scratch.largest);
  // A thread's share is small enough for float; the rest is added up in double.
  float share = 0;
  visit_row<T, kThreads>(classes, threadIdx.x, in_vectors, [&](int64_t c, auto together) {
    float values[together()];
    load_vector(line + c, values);
#pragma unroll
    for (int i = 0; i < together(); ++i) share += expf(values[i] - top);
  });
  const double total = block_sum(static_cast<double>(share), scratch.total);
  const bool known = target >= 0 && target < classes;
  if (threadIdx.x == 0) {
    losses[row] =
        known ? log(total) + static_cast<double>(top) - static_cast<double>(load(line + target))
              : static_cast<double>(NAN);
  }
  if (!gradient) return;
  __syncthreads();  // the target's logit was read
  const float factor = known ? static_cast<float>(1.0 / total) : NAN;
  visit_row<T, kThreads>(classes, threadIdx.x, in_vectors, [&](int64_t c, auto together) {
    float values[together()];
    load_vector(line + c, values);
    const int64_t place = target - c;
#pragma unroll
    for (int i = 0; i < together(); ++i) {
      values[i] = expf(values[i] - top) * factor - (i == place ? 1.0f : 0.0f);
    }
    store_vector(line + c, values);
  });
}

}  // namespace

void softmax_rows(const Tensor& logits, const Tensor& targets, const Tensor& losses,
                  bool gradient) {
  dispatch(logits.dtype(), [&](auto zero) {
    using T = decltype(zero);
    launch({"cross_entropy_rows", blocks_for(logits.size(0), 1), kThreads, shared_bytes<Scratch>()},
           cross_entropy_rows<T>, pointer<T>(logits), pointer<int32_t>(targets), logits.size(1),
           reads_vectors<T>(logits.size(1), pointer<T>(logits)), pointer<double>(losses), gradient);
  });
}

}  // namespace linnet::cuda
