// The oneDNN half of core/gemm: used only by gemm.cpp.
#pragma once

#include "core/gemm.h"

// No signal handler, whatever it does, may run on a thread that is inside a product. The AVX2 and
// AVX-512 sgemm kernels of oneDNN before 3.11.2 point the stack pointer at a heap block while they
// run (its issue 4845): the kernel writes the frame of the handler over the heap below that block.
// Measured with oneDNN 2.6.3 under a storm of signals with an empty handler: dnnl_sgemm alone
// aborts at once on a damaged heap; with handlers on an alternate stack, or with its SSE4.1
// kernels, 97 thousand signals did no harm, nor did 95 thousand to a whole training run, which
// ended in the same bits.
namespace linnet {

// Row-major c[m,n] = alpha op(a) op(b) + beta c in f32.
void onednn_sgemm(const float* a, Transpose ta, const float* b, Transpose tb, float* c, int64_t m,
                  int64_t n, int64_t k, float alpha, float beta);

// Whether onednn_matmul() takes bf16 on this processor: oneDNN wants AVX-512 for it.
bool onednn_has_bf16();

// `batch` products of f32 or bf16 operands into c (same dtype, or f32), overwriting or adding.
// Primitives are cached by shape: creating one costs 0.1 to 0.2 ms.
void onednn_matmul(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb, const Tensor& c,
                   int64_t batch, int64_t m, int64_t n, int64_t k, bool accumulate);

std::string onednn_version();

}  // namespace linnet
