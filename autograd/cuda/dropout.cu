// Dropout: the factors of autograd/dropout.h, drawn where they are used.
#include "autograd/cuda/dropout.h"

#include "core/cuda/random.h"
#include "core/cuda/vectors.h"

namespace linnet::cuda {
namespace {

template <typename T>
struct DropoutRows {
  const T* x;
  const T* base;  // null: none
  T* y;
  const int64_t* examples;
  int64_t rows, time, channels, offset;
  bool in_vectors;
  RandomKey key;
  uint32_t limit;
  float keep;
};

// A warp for each row, so that a place is named once for all of a lane's channels. A counter yields
// the words of four channels.
template <typename T>
__global__ void dropout_rows(DropoutRows<T> d) {
  constexpr int kLanes = 32, kCount = kVector<T>;
  const int64_t row = global_thread() / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  if (row >= d.rows) return;
  const RandomKey key = key_of_step(d.key);
  const uint64_t first = random_element(static_cast<uint64_t>(d.examples[row / d.time]),
                                        static_cast<uint64_t>(d.offset + row % d.time), 0,
                                        static_cast<uint64_t>((d.channels + 3) / 4));
  const T* x = d.x + row * d.channels;
  const T* base = d.base == nullptr ? nullptr : d.base + row * d.channels;
  T* y = d.y + row * d.channels;
  const auto factor = [&](uint32_t word) { return word < d.limit ? 0.0f : d.keep; };
  if (d.in_vectors) {
#pragma unroll 1
    for (int64_t c = lane * kCount; c < d.channels; c += kLanes * kCount) {
      float values[kCount], sums[kCount] = {};
      load_vector(x + c, values);
      if (base != nullptr) load_vector(base + c, sums);
#pragma unroll
      for (int four = 0; four < kCount; four += 4) {
        const auto words = key.words(first + static_cast<uint64_t>((c + four) / 4));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[four + i] += values[four + i] * factor(words[static_cast<size_t>(i)]);
        }
      }
      store_vector(y + c, sums);
    }
    return;
  }
  for (int64_t c = lane * 4; c < d.channels; c += kLanes * 4) {
    const auto words = key.words(first + static_cast<uint64_t>(c / 4));
    for (int64_t i = 0; i < 4 && c + i < d.channels; ++i) {
      const float sum = base == nullptr ? 0.0f : load(base + c + i);
      store(y + c + i, sum + load(x + c + i) * factor(words[static_cast<size_t>(i)]));
    }
  }
}

}  // namespace

void dropout(const Tensor& x, const Tensor& base, const DropoutSpec& spec, const Tensor& y) {
  constexpr int kThreads = 256;
  if (x.elements() == 0) return;
  dispatch(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const DropoutRows<T> rows{pointer<const T>(x),
                              pointer_or_null<const T>(base),
                              pointer<T>(y),
                              pointer<const int64_t>(spec.place.examples),
                              x.size(0) * x.size(1),
                              x.size(1),
                              x.size(2),
                              spec.place.time_offset,
                              reads_vectors<T>(x.size(2), pointer<const T>(x),
                                               pointer_or_null<const T>(base), pointer<T>(y)),
                              spec.key,
                              dropout_limit(spec.probability),
                              dropout_scale(spec.probability)};
    launch({"dropout_rows", blocks_for(rows.rows * 32, kThreads), kThreads}, dropout_rows<T>, rows);
  });
}

}  // namespace linnet::cuda
