// Copies between views and contiguous tensors; sums over views.
#include "autograd/cuda/layout.h"

#include <algorithm>

#include "core/cuda/block_reduce.h"
#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
T* elements_of(const Tensor& x) {
  require_current(x.device().index);
  return static_cast<T*>(x.raw());
}

struct SumScratch {
  __host__ __device__ explicit SumScratch(SharedArena& arena) : values(arena.take<double>(33)) {}
  double* values;
};

// Sums of parts [parts,sums]: part p has the terms [p part, (p + 1) part) of `summed`.
struct SumParts {
  int64_t sums, terms, part;
  double* partial;

  __device__ int64_t begin() const { return static_cast<int64_t>(blockIdx.y) * part; }
  __device__ int64_t end() const { return begin() + part < terms ? begin() + part : terms; }
  __device__ void put(int64_t i, double sum) const {
    partial[static_cast<int64_t>(blockIdx.y) * sums + i] = sum;
  }
};

// A block for a part of each sum.
__global__ void sum_view_by_block(StoredValues x, const __grid_constant__ Views<1> kept,
                                  const __grid_constant__ Views<1> summed, SumParts parts) {
  SharedArena arena;
  const SumScratch scratch(arena);
  const int64_t first = kept.offset(0, blockIdx.x), end = parts.end();
  double sum = 0;
  for (int64_t j = parts.begin() + threadIdx.x; j < end; j += blockDim.x) {
    sum += static_cast<double>(x.at(first + summed.offset(0, j)));
  }
  sum = block_sum(sum, scratch.values);
  if (threadIdx.x == 0) parts.put(blockIdx.x, sum);
}

constexpr int kColumns = 32, kRowThreads = 8;

struct ColumnScratch {
  __host__ __device__ explicit ColumnScratch(SharedArena& arena)
      : values(arena.take<double[kColumns]>(kRowThreads)) {}
  double (*values)[kColumns];
};

// A block for a part of kColumns sums whose terms lie beside each other, so that the threads of a
// warp read neighbours.
__global__ void sum_view_by_columns(StoredValues x, const __grid_constant__ Views<1> kept,
                                    const __grid_constant__ Views<1> summed, SumParts parts) {
  SharedArena arena;
  const ColumnScratch scratch(arena);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x, end = parts.end();
  double sum = 0;
  if (i < parts.sums) {
    const int64_t first = kept.offset(0, i);
    for (int64_t j = parts.begin() + threadIdx.y; j < end; j += kRowThreads) {
      sum += static_cast<double>(x.at(first + summed.offset(0, j)));
    }
  }
  scratch.values[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || i >= parts.sums) return;
  for (int row = 1; row < kRowThreads; ++row) sum += scratch.values[row][threadIdx.x];
  parts.put(i, sum);
}

// nvcc takes no device lambda inside of a generic one.
template <typename T>
void read_typed(const Tensor& from, int64_t offset, const Views<1>& view, const Tensor& whole) {
  const T* source = elements_of<T>(from) + offset;
  T* to = elements_of<T>(whole);
  for_each("read_view", whole.elements(),
           [=] __device__(int64_t i) { to[i] = source[view.offset(0, i)]; });
}

template <typename T>
void write_typed(const Tensor& whole, const Tensor& to, int64_t offset, const Views<1>& view) {
  const T* source = elements_of<T>(whole);
  T* target = elements_of<T>(to) + offset;
  for_each("write_view", whole.elements(),
           [=] __device__(int64_t i) { target[view.offset(0, i)] = source[i]; });
}

}  // namespace

void read_view(const Tensor& from, int64_t offset, const Views<1>& view, const Tensor& whole) {
  dispatch_size(from, [&](auto zero) { read_typed<decltype(zero)>(from, offset, view, whole); });
}

void write_view(const Tensor& whole, const Tensor& to, int64_t offset, const Views<1>& view) {
  dispatch_size(to, [&](auto zero) { write_typed<decltype(zero)>(whole, to, offset, view); });
}

void sum_view(const Tensor& x, const Views<1>& kept, const Views<1>& summed, const Tensor& y) {
  const StoredValues from = stored_values(x);
  const StoredResults to = stored_results(y);
  const int64_t count = summed.elements();
  // With many sums a thread each fills the device, and threads beside each other read neighbours,
  // unless neighbours belong to one sum.
  constexpr int64_t kMany = 16384;
  const int64_t sums = y.elements();
  const bool along = summed.step(0) == 1 && kept.step(0) != 1;
  if (sums == 0 || count < kThreads || (sums >= kMany && !along)) {
    for_each("sum_view", sums, [=] __device__(int64_t i) {
      const int64_t first = kept.offset(0, i);
      double sum = 0;
      for (int64_t j = 0; j < count; ++j) {
        sum += static_cast<double>(from.at(first + summed.offset(0, j)));
      }
      to.put(i, static_cast<float>(sum));
    });
    return;
  }
  const bool beside = kept.step(0) == 1 && kept.run() >= kColumns;
  const unsigned blocks = blocks_for(sums, beside ? kColumns : 1);
  // Blocks that fill a device, each with enough terms to be worth it.
  constexpr int64_t kBlocks = 512, kTerms = 2048;
  const int64_t wanted = std::clamp<int64_t>(std::min(kBlocks / blocks, count / kTerms), 1, 64);
  const int64_t part = (count + wanted - 1) / wanted, parts = (count + part - 1) / part;
  const Tensor partial = Tensor::empty({parts, sums}, DType::f64, x.device());
  double* const of_parts = pointer<double>(partial);
  const SumParts how{sums, count, part, of_parts};
  const dim3 grid(blocks, static_cast<unsigned>(parts));
  if (beside) {
    launch(
        {"sum_view_by_columns", grid, dim3(kColumns, kRowThreads), shared_bytes<ColumnScratch>()},
        sum_view_by_columns, from, kept, summed, how);
  } else {
    launch({"sum_view_by_block", grid, kThreads, shared_bytes<SumScratch>()}, sum_view_by_block,
           from, kept, summed, how);
  }
  for_each("sum_of_parts", sums, [=] __device__(int64_t i) {
    double sum = 0;
    for (int64_t p = 0; p < parts; ++p) sum += of_parts[p * sums + i];
    to.put(i, static_cast<float>(sum));
  });
}

}  // namespace linnet::cuda
