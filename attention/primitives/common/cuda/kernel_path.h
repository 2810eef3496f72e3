// Shared by the functions that choose between kernels: whether a call goes to the fast ones, why it
// cannot, and what happens then.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>

#include "core/tensor.h"

namespace linnet::cuda {

// Says, once for each operation and reason, that its plain kernels compute because its fast ones
// (`which`) do not cover `why`. Throws UsageError where tensor cores were requested.
void use_plain_kernels(const std::string& operation, const std::string& why,
                       const std::string& which = "kernels on tensor cores");

// Whether a call about x [B,T,...] goes to the fast kernels; `why` is the reason why they cannot
// compute it, empty where they can. Never where plain kernels were requested, nor for few tokens;
// where there is a reason, as use_plain_kernels, but nobody expects fast kernels of a model in f32,
// so that nothing is said then.
bool takes_fast_kernels(const std::string& operation, const Tensor& x,
                        const std::function<std::string()>& why,
                        const std::string& which = "kernels on tensor cores");

// Why these tensors cannot enter bf16 products or copies of 16 bytes, or why this thread's GPU
// cannot give a block so many bytes of shared memory, in words; empty: they can. Undefined tensors
// always can.
std::string unsupported_dtype(std::initializer_list<const Tensor*> tensors);
std::string unsupported_alignment(std::initializer_list<const Tensor*> tensors);
std::string unsupported_shared_memory(size_t requested);

}  // namespace linnet::cuda
