// What the functions that choose between kernels share: whether a call goes to the fast ones, what
// they lack, and what happens where they cannot compute it.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>

#include "core/tensor.h"

namespace linnet::cuda {

// Says, once for each operation and reason, that its plain kernels compute because its fast ones
// (`which`) do not cover `why`. Throws UsageError where tensor cores were asked for.
void use_plain_kernels(const std::string& operation, const std::string& why,
                       const std::string& which = "kernels on tensor cores");

// Whether a call about x [B,T,...] goes to the fast kernels; `why` says what they lack for it,
// empty where they compute it. Never where plain kernels were asked for, nor for few tokens; where
// they lack something, as use_plain_kernels, but nobody expects fast kernels of a model in f32, so
// that nothing is said then.
bool takes_fast_kernels(const std::string& operation, const Tensor& x,
                        const std::function<std::string()>& why,
                        const std::string& which = "kernels on tensor cores");

// In words, what these tensors lack for products in bf16, or for copies of 16 bytes, or this
// thread's GPU for blocks of so many bytes of shared memory; empty: nothing. Undefined tensors lack
// nothing.
std::string lack_of_bf16(std::initializer_list<const Tensor*> tensors);
std::string lack_of_alignment(std::initializer_list<const Tensor*> tensors);
std::string lack_of_shared_memory(size_t asked);

}  // namespace linnet::cuda
