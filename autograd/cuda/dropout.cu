// Dropout: the factors of autograd/dropout.h, drawn where they are used.
#include "autograd/cuda/dropout.h"

#include "autograd/cuda/dropout_rows.h"
#include "core/cuda/vectors.h"

namespace linnet::cuda {
namespace {

template <typename T>
struct DropoutRows {
  const T* x;
  const T* base;  // null: none
  T* y;
  int64_t rows, channels;
  DropoutDraw draw;
};

// A warp for each row.
template <typename T, bool in_vectors>
__global__ void dropout_rows(DropoutRows<T> d) {
  constexpr int kLanes = 32, kCount = in_vectors ? kVector<T> : 4;
  const int64_t row = global_thread() / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if (row >= d.rows) return;
  const DropoutFactors drawn(d.draw, row);
  const T* x = d.x + row * d.channels;
  const T* base = d.base == nullptr ? nullptr : d.base + row * d.channels;
  T* y = d.y + row * d.channels;
#pragma unroll 1
  for (int64_t c = lane * kCount; c < d.channels; c += kLanes * kCount) {
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

}  // namespace

void dropout(const Tensor& x, const Tensor& base, const DropoutSpec& spec, const Tensor& y) {
  constexpr int kThreads = 256;
  if (x.elements() == 0) return;
  dispatch(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const DropoutRows<T> rows{pointer<const T>(x), pointer_or_null<const T>(base),
                              pointer<T>(y),       x.size(0) * x.size(1),
                              x.size(2),           dropout_draw(x, spec)};
    const bool in_vectors = reads_vectors<T>(rows.channels, rows.x, rows.base, rows.y);
    launch({"dropout_rows", blocks_for(rows.rows * 32, kThreads), kThreads},
           in_vectors ? dropout_rows<T, true> : dropout_rows<T, false>, rows);
  });
}

}  // namespace linnet::cuda
