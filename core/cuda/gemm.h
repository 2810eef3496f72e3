// Matrix products on a CUDA device by cuBLASLt: core/gemm.h calls them in builds with CUDA on. The
// emulated device multiplies with the CPU's library.
#pragma once

#include "core/gemm.h"

namespace linnet::cuda {

struct GemmShape {
  int64_t batch = 1, m = 0, n = 0, k = 0;
};

// c = alpha op(a) op(b) + beta c for `batch` dense row-major matrices, f32 or bf16 with sums in
// f32; sizes and dtypes are already checked, m, n, k > 0. Plans are chosen once for each shape.
// Throws Error with cuBLAS' status.
void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
          const Tensor& c, const GemmShape& shape, double alpha, double beta);

// "cuBLASLt 13.0.0".
std::string gemm_backend();

}  // namespace linnet::cuda
