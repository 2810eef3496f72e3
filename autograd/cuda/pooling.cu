// Pooling over time.
#include "autograd/cuda/pooling.h"

#include "core/cuda/block_reduce.h"
#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 32;                       // channels per block
constexpr int kTimeThreads = kThreads / kColumns;  // threads that share a channel

struct CountScratch {
  __host__ __device__ explicit CountScratch(SharedArena& arena) : values(arena.take<double>(33)) {}
  double* values;
};

// A block for each row; mask may be null.
__global__ void count_valid(const uint8_t* mask, int64_t time, bool divide_by_length,
                            float* weights) {
  SharedArena arena;
  const CountScratch scratch(arena);
  double valid = 0;  // exact for any count
  for (int64_t t = threadIdx.x; t < time; t += kThreads) {
    if (mask == nullptr || mask[blockIdx.x * time + t] != 0) valid += 1;
  }
  valid = block_sum(valid, scratch.values);
  if (threadIdx.x > 0) return;
  const double divisor = divide_by_length ? static_cast<double>(time) : valid;
  weights[blockIdx.x] = valid == 0 ? 0.0f : static_cast<float>(1 / divisor);
}

struct PoolScratch {
  __host__ __device__ explicit PoolScratch(SharedArena& arena)
      : sums(arena.take<float[kColumns]>(kTimeThreads)) {}
  float (*sums)[kColumns];
};

__global__ void pool_rows(StoredValues x, const uint8_t* mask, const float* weights, int64_t time,
                          int64_t channels, StoredResults y) {
  SharedArena arena;
  const PoolScratch shared(arena);
  const int64_t b = blockIdx.x;
  const int64_t channel = static_cast<int64_t>(blockIdx.y) * kColumns + threadIdx.x;
  float total = 0;
  for (int64_t t = threadIdx.y; channel < channels && t < time; t += kTimeThreads) {
    if (mask != nullptr && mask[b * time + t] == 0) continue;  // may be NaN
    total += x.at((b * time + t) * channels + channel);
  }
  shared.sums[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y > 0 || channel >= channels) return;
  for (int other = 1; other < kTimeThreads; ++other) total += shared.sums[other][threadIdx.x];
  y.put(b * channels + channel, total * weights[b]);
}

}  // namespace

void gather_time(const Tensor& x, const Tensor& index, const Tensor& y) {
  const StoredValues from = stored_values(x);
  const int32_t* at = pointer<int32_t>(index);
  const StoredResults to = stored_results(y);
  const int64_t time = x.size(1), channels = x.size(2);
  for_each("gather_time", y.elements(), [=] __device__(int64_t i) {
    const int64_t b = i / channels, t = at[b];
    const bool inside = t >= 0 && t < time;
    to.put(i, inside ? from.at((b * time + t) * channels + i % channels) : NAN);
  });
}

void gather_time_backward(const Tensor& dy, const Tensor& index, const Tensor& dx) {
  const StoredValues from = stored_values(dy);
  const int32_t* at = pointer<int32_t>(index);
  const StoredResults to = stored_results(dx);
  const int64_t time = dx.size(1), channels = dx.size(2);
  for_each("gather_time_backward", dx.elements(), [=] __device__(int64_t i) {
    const int64_t row = i / channels, b = row / time;
    to.put(i, row % time == at[b] ? from.at(b * channels + i % channels) : 0.0f);
  });
}

void pool_weights(const Tensor& mask, int64_t time, bool divide_by_length, const Tensor& weights) {
  launch({"count_valid", blocks_for(weights.elements(), 1), kThreads, shared_bytes<CountScratch>()},
         count_valid, pointer_or_null<uint8_t>(mask), time, divide_by_length,
         pointer<float>(weights));
}

void mean_pool(const Tensor& x, const Tensor& mask, const Tensor& weights, const Tensor& y) {
  const dim3 grid(blocks_for(x.size(0), 1), blocks_for(x.size(2), kColumns));
  launch({"pool_rows", grid, dim3(kColumns, kTimeThreads), shared_bytes<PoolScratch>()}, pool_rows,
         stored_values(x), pointer_or_null<uint8_t>(mask), pointer<float>(weights), x.size(1),
         x.size(2), stored_results(y));
}

void mean_pool_backward(const Tensor& dy, const Tensor& mask, const Tensor& weights,
                        const Tensor& dx) {
  const StoredValues from = stored_values(dy);
  const uint8_t* valid = pointer_or_null<uint8_t>(mask);
  const float* weight = pointer<float>(weights);
  const StoredResults to = stored_results(dx);
  const int64_t time = dx.size(1), channels = dx.size(2);
  for_each("mean_pool_backward", dx.elements(), [=] __device__(int64_t i) {
    const int64_t row = i / channels, b = row / time;
    const bool counts = valid == nullptr || valid[row] != 0;
    to.put(i, counts ? weight[b] * from.at(b * channels + i % channels) : 0.0f);
  });
}

void last_valid(const Tensor& mask, const Tensor& last) {
  const auto* valid = pointer<uint8_t>(mask);
  auto* to = pointer<uint8_t>(last);
  const int64_t time = mask.size(1);
  for_each("last_valid", mask.size(0), [=] __device__(int64_t b) {
    int64_t t = time - 1;
    while (t >= 0 && valid[b * time + t] == 0) --t;
    if (t >= 0) to[b * time + t] = 1;
  });
}

}  // namespace linnet::cuda
