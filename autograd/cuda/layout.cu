// Copies between views and contiguous tensors; sums over views.
#include "autograd/cuda/layout.h"

#include <algorithm>

#include "core/cuda/block_reduce.h"
#include "core/cuda/copy_element.h"
#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"
#include "core/cuda/vectors.h"

namespace linnet::cuda {
namespace {

constexpr int kThreads = 256;

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

// What a copy between a view of `in_view` and contiguous elements takes: where both begin, and
// elements of `size` bytes.
struct ViewCopy {
  Views<1> view;
  char *in_view, *contiguous;
  size_t size;
};
ViewCopy copy_of(const Tensor& in_view, int64_t offset, const Views<1>& view,
                 const Tensor& contiguous) {
  require_current(contiguous.device().index);
  const size_t size = size_of(in_view.dtype());
  ViewCopy copy{view, static_cast<char*>(in_view.raw()) + static_cast<size_t>(offset) * size,
                static_cast<char*>(contiguous.raw()), size};
  // Where neighbours stay neighbours, 16 bytes of them are one element.
  const auto together = static_cast<int64_t>(16 / size);
  bool whole =
      view.step(0) == 1 && view.run() % together == 0 && are_aligned(copy.in_view, copy.contiguous);
  for (int d = 0; d + 1 < view.rank; ++d) whole &= view.strides[0][d] % together == 0;
  if (!whole) return copy;
  copy.size = 16;
  copy.view.sizes[view.rank - 1] /= together;
  for (int d = 0; d + 1 < view.rank; ++d) copy.view.strides[0][d] /= together;
  return copy;
}

__device__ __forceinline__ void copy_of_size(size_t size, const void* from, int64_t i, void* to,
                                             int64_t j) {
  if (size == 16) {
    static_cast<VectorWords*>(to)[j] = static_cast<const VectorWords*>(from)[i];
  } else {
    copy_element(size, from, i, to, j);
  }
}

}  // namespace

void read_view(const Tensor& from, int64_t offset, const Views<1>& view, const Tensor& whole) {
  const ViewCopy c = copy_of(from, offset, view, whole);
  for_each("read_view", c.view.elements(), [=] __device__(int64_t i) {
    copy_of_size(c.size, c.in_view, c.view.offset(0, i), c.contiguous, i);
  });
}

void write_view(const Tensor& whole, const Tensor& to, int64_t offset, const Views<1>& view) {
  const ViewCopy c = copy_of(to, offset, view, whole);
  for_each("write_view", c.view.elements(), [=] __device__(int64_t i) {
    copy_of_size(c.size, c.contiguous, i, c.in_view, c.view.offset(0, i));
  });
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
