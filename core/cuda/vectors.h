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

// Elements as they lie in memory, one or 16 bytes of them: those of several places are on their way
// together when none is unpacked before all are read.
template <typename T, int count>
class Packed {
 public:
  __device__ __forceinline__ void read(const T* from) {
    words_ = *reinterpret_cast<const Words*>(from);
  }
  __device__ __forceinline__ void unpack(float (&values)[count]) const {
    load_vector(reinterpret_cast<const T*>(&words_), values);
  }

 private:
  static_assert(count == 1 || count == kVector<T>);
  using Words = std::conditional_t<count == 1, T, VectorWords>;
  Words words_{};
};

// Elements i to i + count of a row that is repeated without end.
template <int count, typename T>
__device__ __forceinline__ void load_repeated(const T* row, int64_t columns, int64_t i,
                                              float (&values)[count]) {
  int64_t column = i % columns;
#pragma unroll
  for (int j = 0; j < count; ++j) {
    values[j] = load(row + column);
    if (++column == columns) column = 0;
  }
}

// Element i and those behind it of an array whose type is known at run time.
template <typename T>
__device__ __forceinline__ const T* elements(const void* array, int64_t i) {
  return static_cast<const T*>(array) + i;
}
template <typename T>
__device__ __forceinline__ T* elements(void* array, int64_t i) {
  return static_cast<T*>(array) + i;
}
// A tensor's elements; throws Error where it has another dtype. Null for an undefined tensor.
inline void* array_of(DType dtype, const Tensor& x) {
  void* array = nullptr;
  dispatch(dtype, [&](auto zero) { array = pointer_or_null<decltype(zero)>(x); });
  return array;
}

// Calls body(T{}, whether 16 bytes are read at a time), a constant: one kernel then serves both
// types and rows that lie anywhere.
template <typename Body>
__device__ __forceinline__ void with_elements(bool narrow, bool in_vectors, const Body& body) {
  if (narrow) {
    if (in_vectors) {
      body(kernel_bf16{}, std::true_type{});
    } else {
      body(kernel_bf16{}, std::false_type{});
    }
  } else if (in_vectors) {
    body(float{}, std::true_type{});
  } else {
    body(float{}, std::false_type{});
  }
}

// One thread for eight elements of arrays of T: f.at<T, n>(i) for `n` elements, eight or one, from
// element i on.
template <typename T, typename F>
__device__ __forceinline__ void visit_eight(int64_t count, bool in_vectors, const F& f) {
  constexpr int kTogether = 8;
  const int64_t begin = global_thread() * kTogether;
  if (in_vectors && begin + kTogether <= count) return f.template at<T, kTogether>(begin);
  for (int64_t i = begin; i < begin + kTogether && i < count; ++i) f.template at<T, 1>(i);
}
// The type is chosen once a thread: one kernel serves both.
template <typename F>
__global__ void for_each_eight(int64_t count, bool narrow, bool in_vectors, F f) {
  if (narrow) {
    visit_eight<kernel_bf16>(count, in_vectors, f);
  } else {
    visit_eight<float>(count, in_vectors, f);
  }
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

// `what` names the operation in messages; `dtype`, f32 or bf16, is that of f's arrays;
// `in_vectors`: all of them, and the eights that f takes, begin on 16 bytes.
template <typename F>
void for_each_vector(const char* what, DType dtype, int64_t count, bool in_vectors, const F& f) {
  constexpr int kThreads = 256;
  if (count == 0) return;
  note_launch("for_each_eight");
  launch({what, blocks_for(count, kThreads * 8), kThreads}, for_each_eight<F>, count,
         dtype == DType::bf16, in_vectors, f);
}

}  // namespace linnet::cuda
