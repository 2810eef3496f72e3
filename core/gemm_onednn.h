// The oneDNN half of core/gemm: used only by gemm.cpp.
#pragma once

#include "core/gemm.h"

namespace linnet {

// Row-major c[m,n] = alpha op(a) op(b) + beta c in f32.
void onednn_sgemm(const float* a, Transpose ta, const float* b, Transpose tb, float* c, int64_t m,
                  int64_t n, int64_t k, float alpha, float beta);

// `batch` products of f32 or bf16 operands into c (same dtype, or f32), overwriting or adding.
// Primitives are cached by shape: creating one costs 0.1 to 0.2 ms.
void onednn_matmul(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb, const Tensor& c,
                   int64_t batch, int64_t m, int64_t n, int64_t k, bool accumulate);

std::string onednn_version();

}  // namespace linnet
