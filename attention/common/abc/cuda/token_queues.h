// Queues of tokens on a CUDA device; token_queues.cpp calls these.
#pragma once

#include "attention/common/abc/token_queues.h"

namespace linnet::cuda {

// Fills `out`, whose tensors have their shapes.
void token_queues(const TokenQueueInputs& in, const TokenQueues& out);

// after = pushed + count.
void pushed_after(const Tensor& pushed, int64_t count, const Tensor& after);

}  // namespace linnet::cuda
