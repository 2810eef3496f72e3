// Neighbouring elements of f32 or bf16 that are loaded and stored together, 16 bytes of them: loads
// of single elements reach a third of a memory's rate.
#pragma once

#include "core/cuda/mma.h"

namespace linnet::cuda {

// Elements of 16 bytes.
template <typename T>
inline constexpr int kVector = 16 / sizeof(T);

struct alignas(16) VectorWords {
  uint32_t words[4];
};

// `count` elements from there on: one, or those of several times 16 bytes that begin on 16.
template <int count>
__device__ __forceinline__ void load_vector(const float* from, float (&values)[count]) {
  if constexpr (count == 1) {
    values[0] = *from;
  } else {
    VectorWords all[count / kVector<float>];
#pragma unroll
    for (int i = 0; i < count / kVector<float>; ++i) {
      all[i] = reinterpret_cast<const VectorWords*>(from)[i];
    }
    static_assert(sizeof all == sizeof values);
    memcpy(values, all, sizeof values);
  }
}
template <int count>
__device__ __forceinline__ void load_vector(const kernel_bf16* from, float (&values)[count]) {
  if constexpr (count == 1) {
    values[0] = load(from);
  } else {
    static_assert(count == kVector<kernel_bf16>);
    const auto all = *reinterpret_cast<const VectorWords*>(from);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = low_of(all.words[i]);
      values[2 * i + 1] = high_of(all.words[i]);
    }
  }
}
template <int count>
__device__ __forceinline__ void store_vector(float* to, const float (&values)[count]) {
  if constexpr (count == 1) {
    *to = values[0];
  } else {
    VectorWords all[count / kVector<float>];
    static_assert(sizeof all == sizeof values);
    memcpy(all, values, sizeof values);
#pragma unroll
    for (int i = 0; i < count / kVector<float>; ++i) {
      reinterpret_cast<VectorWords*>(to)[i] = all[i];
    }
  }
}
template <int count>
__device__ __forceinline__ void store_vector(kernel_bf16* to, const float (&values)[count]) {
  if constexpr (count == 1) {
    store(to, values[0]);
  } else {
    static_assert(count == kVector<kernel_bf16>);
    VectorWords all;
#pragma unroll
    for (int i = 0; i < 4; ++i) all.words[i] = pack(values[2 * i], values[2 * i + 1]);
    *reinterpret_cast<VectorWords*>(to) = all;
  }
}

// Calls visit(i, count) for all elements of a row, shared among `threads` threads of which this one
// has number `thread`: `count`, a constant, of them from i on.
template <typename T, int threads, typename Visit>
__device__ __forceinline__ void visit_row(int64_t elements, unsigned thread, bool in_vectors,
                                          const Visit& visit) {
  constexpr int kCount = kVector<T>;
  if (in_vectors) {
#pragma unroll 1
    for (int64_t i = thread * kCount; i < elements; i += threads * kCount) {
      visit(i, std::integral_constant<int, kCount>{});
    }
  } else {
#pragma unroll 1
    for (int64_t i = thread; i < elements; i += threads) visit(i, std::integral_constant<int, 1>{});
  }
}

// One thread for eight elements: f.at<n>(i) for `n` elements, eight or one, from element i on.
template <typename F>
__global__ void for_each_eight(int64_t count, bool in_vectors, F f) {
  constexpr int kTogether = 8;
  const int64_t begin = global_thread() * kTogether;
  if (in_vectors && begin + kTogether <= count) return f.template at<kTogether>(begin);
  for (int64_t i = begin; i < begin + kTogether && i < count; ++i) f.template at<1>(i);
}

// Whether arrays, of which some may be null, begin on 16 bytes.
template <typename... T>
bool are_aligned(const T*... arrays) {
  return ((reinterpret_cast<uintptr_t>(arrays) | ...) % 16) == 0;
}

// Whether rows of so many elements are read 16 bytes at a time.
template <typename T, typename... Arrays>
bool reads_vectors(int64_t elements, const Arrays*... arrays) {
  return elements % kVector<T> == 0 && are_aligned(arrays...);
}

// `what` names the operation in messages; the arrays are those of f.
template <typename F, typename... T>
void for_each_vector(const char* what, int64_t count, const F& f, const T*... arrays) {
  constexpr int kThreads = 256;
  if (count == 0) return;
  note_launch("for_each_eight");
  launch({what, blocks_for(count, kThreads * 8), kThreads}, for_each_eight<F>, count,
         are_aligned(arrays...), f);
}

}  // namespace linnet::cuda
