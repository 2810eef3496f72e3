// Dropout: the factors of autograd/dropout.h, drawn where they are used.
#include "autograd/cuda/dropout.h"

#include "autograd/cuda/dropout_rows.h"
#include "core/cuda/vectors.h"

namespace linnet::cuda {
namespace {

struct DropoutRows {
  const void* x;
  const void* base;  // null: none
  void* y;
  int64_t rows, channels;
  DropoutDraw draw;
};

// One row by a warp: 16 bytes of channels at a time, or four that the row may cut.
template <typename T, bool in_vectors>
__device__ __forceinline__ void drop_row(const DropoutRows& d, int64_t row) {
  constexpr int kLanes = 32, kCount = in_vectors ? kVector<T> : 4;
  const DropoutFactors drawn(d.draw, row);
  const T* x = elements<T>(d.x, row * d.channels);
  const T* base = d.base == nullptr ? nullptr : elements<T>(d.base, row * d.channels);
  T* y = elements<T>(d.y, row * d.channels);
#pragma unroll 1
  for (int64_t c = threadIdx.x % kLanes * kCount; c < d.channels; c += kLanes * kCount) {
    float factors[kCount], sums[kCount] = {};
    drawn.at(c, factors);
    if constexpr (in_vectors) {
      float values[kCount];
      load_vector(x + c, values);
      if (base != nullptr) load_vector(base + c, sums);
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[i] = fmaf(values[i], factors[i], sums[i]);
      store_vector(y + c, sums);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (c + i >= d.channels) break;
        if (base != nullptr) sums[i] = load(base + c + i);
        store(y + c + i, fmaf(load(x + c + i), factors[i], sums[i]));
      }
    }
  }
}

__global__ void dropout_rows(DropoutRows d, bool narrow, bool in_vectors) {
  const int64_t row = global_thread() / 32;
  if (row >= d.rows) return;
  with_elements(narrow, in_vectors,
                [&](auto zero, auto vectors) { drop_row<decltype(zero), vectors()>(d, row); });
}

}  // namespace

void dropout(const Tensor& x, const Tensor& base, const DropoutSpec& spec, const Tensor& y) {
  constexpr int kThreads = 256;
  if (x.elements() == 0) return;
  const DType dtype = x.dtype();
  const DropoutRows rows{array_of(dtype, x), array_of(dtype, base),
                         array_of(dtype, y), x.size(0) * x.size(1),
                         x.size(2),          dropout_draw(x, spec)};
  const int64_t together = 16 / static_cast<int64_t>(size_of(dtype));
  const bool in_vectors = rows.channels % together == 0 && are_aligned(rows.x, rows.base, rows.y);
  launch({"dropout_rows", blocks_for(rows.rows * 32, kThreads), kThreads}, dropout_rows, rows,
         dtype == DType::bf16, in_vectors);
}

}  // namespace linnet::cuda
