// Copies between views and contiguous tensors; sums over views.
#include "autograd/cuda/layout.h"

#include "core/cuda/block_reduce.h"
#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

constexpr int kThreads = 256;

// Calls body with an integer of the size of an element.
template <typename Body>
void dispatch_size(const Tensor& x, const Body& body) {
  switch (size_of(x.dtype())) {
    case 2:
      return body(uint16_t{});
    case 4:
      return body(uint32_t{});
    case 8:
      return body(uint64_t{});
    default:
      return body(uint8_t{});
  }
}

template <typename T>
T* elements_of(const Tensor& x) {
  require_current(x.device().index);
  return static_cast<T*>(x.raw());
}

struct SumScratch {
  __host__ __device__ explicit SumScratch(SharedArena& arena) : values(arena.take<double>(33)) {}
  double* values;
};

// A block for each sum.
__global__ void sum_view_by_block(StoredValues x, const __grid_constant__ Views<1> kept,
                                  const __grid_constant__ Views<1> summed, StoredResults y) {
  SharedArena arena;
  const SumScratch scratch(arena);
  const int64_t first = kept.offset(0, blockIdx.x), count = summed.elements();
  double sum = 0;
  for (int64_t j = threadIdx.x; j < count; j += blockDim.x) {
    sum += static_cast<double>(x.at(first + summed.offset(0, j)));
  }
  sum = block_sum(sum, scratch.values);
  if (threadIdx.x == 0) y.put(blockIdx.x, static_cast<float>(sum));
}

}  // namespace

void read_view(const Tensor& from, int64_t offset, const Views<1>& view, const Tensor& whole) {
  dispatch_size(from, [&](auto zero) {
    using T = decltype(zero);
    const T* source = elements_of<T>(from) + offset;
    T* to = elements_of<T>(whole);
    for_each("read_view", whole.elements(),
             [=] __device__(int64_t i) { to[i] = source[view.offset(0, i)]; });
  });
}

void write_view(const Tensor& whole, const Tensor& to, int64_t offset, const Views<1>& view) {
  dispatch_size(to, [&](auto zero) {
    using T = decltype(zero);
    const T* source = elements_of<T>(whole);
    T* target = elements_of<T>(to) + offset;
    for_each("write_view", whole.elements(),
             [=] __device__(int64_t i) { target[view.offset(0, i)] = source[i]; });
  });
}

void sum_view(const Tensor& x, const Views<1>& kept, const Views<1>& summed, const Tensor& y) {
  const StoredValues from = stored_values(x);
  const StoredResults to = stored_results(y);
  const int64_t count = summed.elements();
  // With many sums a thread each fills the device, and threads beside each other read neighbours.
  constexpr int64_t kMany = 16384;
  if (y.elements() >= kMany || count < kThreads) {
    for_each("sum_view", y.elements(), [=] __device__(int64_t i) {
      const int64_t first = kept.offset(0, i);
      double sum = 0;
      for (int64_t j = 0; j < count; ++j) {
        sum += static_cast<double>(from.at(first + summed.offset(0, j)));
      }
      to.put(i, static_cast<float>(sum));
    });
    return;
  }
  launch({"sum_view_by_block", blocks_for(y.elements(), 1), kThreads, shared_bytes<SumScratch>()},
         sum_view_by_block, from, kept, summed, to);
}

}  // namespace linnet::cuda
