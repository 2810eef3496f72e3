// Which kernels compute listed attention on a device: those on tensor cores
// (fast.h) or the plain ones (problem.h), which cover everything. core/kernel_choice.h has the
// request.
#pragma once

#include <string>

#include "attention/primitives/listed_attention/cuda/listed_attention.h"

namespace linnet::cuda {

// Why the tensor-core kernels cannot compute this call, in words; empty: they can.
// The table is in attention/primitives/listed_attention/README.md.
std::string why_plain_listed_attention(const ListedAttentionContext& context,
                                       const ListedAttentionTensors& in);

// Whether a call goes to the kernels on tensor cores, forward and backward. Throws UsageError where
// they were requested and cannot, except for calls of few queries.
bool listed_attention_is_fast(const ListedAttentionContext& context,
                              const ListedAttentionTensors& in);

}  // namespace linnet::cuda
