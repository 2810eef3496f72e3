// One thread for each element: f(i) for i in [0, count), f a __device__ lambda or function object.
#pragma once

#include "core/cuda/kernel.h"

namespace linnet::cuda {

template <typename F>
__global__ void for_each_element(int64_t count, F f) {
  const int64_t i = global_thread();
  if (i < count) f(i);
}

// `what` names the operation in messages.
template <typename F>
void for_each(const char* what, int64_t count, const F& f) {
  constexpr int kThreads = 256;
  if (count == 0) return;
  note_launch("for_each_element");
  launch({what, blocks_for(count, kThreads), kThreads}, for_each_element<F>, count, f);
}

}  // namespace linnet::cuda
