// Which kernels compute causal linear attention on a device: those on tensor cores
// (linear_attention_fast.h) or the plain ones (linear_attention_pieces.h), which cover everything.
#pragma once

#include <string>

#include "attention/primitives/cuda/linear_attention.h"

namespace linnet::cuda {

// What the kernels on tensor cores lack for this call, in words; empty: nothing, they compute it.
// The table is in attention/primitives/README.md.
std::string why_plain_linear_attention(const LinearAttentionContext& context,
                                       const LinearAttentionArrays& in);

// Whether a causal call goes to the kernels on tensor cores. Throws Error where they were asked for
// and cannot.
bool linear_attention_is_fast(const LinearAttentionContext& context,
                              const LinearAttentionArrays& in);

// What decides: `automatic` takes the fast kernels where they cover the call.
enum class LinearAttentionKernels : uint8_t { automatic, plain, tensor_cores };

// For tests and measurements: while this lives, calls of this thread take these kernels.
class UseLinearAttentionKernels {
 public:
  explicit UseLinearAttentionKernels(LinearAttentionKernels kernels);
  ~UseLinearAttentionKernels();
  UseLinearAttentionKernels(const UseLinearAttentionKernels&) = delete;
  UseLinearAttentionKernels& operator=(const UseLinearAttentionKernels&) = delete;

 private:
  LinearAttentionKernels before_;
};

}  // namespace linnet::cuda
