// Factor of the window's output: 1/2, or 1 where the memory is empty.
#pragma once

#include "core/tensor.h"

namespace linnet {

// 1 where the memory that a token reads is empty, else 1/2, for every element of `local` [B,T,H,V]:
// a tensor of its shape, dtype and device. memory_tokens: i64 [B,T].
Tensor local_weight(const Tensor& memory_tokens, const Tensor& local);

}  // namespace linnet
