// Matrix products on a CUDA device by cuBLASLt: core/gemm.h calls them in builds with CUDA on. The
// emulated device multiplies with the CPU's library.
#pragma once

#include "core/gemm.h"

namespace linnet::cuda {

struct GemmShape {
  int64_t batch = 1, m = 0, n = 0, k = 0;
};

// Operations fused into a product. (cuBLASLt's GELU is the approximation by tanh; the exact one
// stays a kernel of its own.)
enum class Epilogue : uint8_t {
  none,
  add_bias,       // adds `vector` [n] to every row of c before c is rounded
  left_row_sums,  // writes the sums over the rows of op(a), [m], to `vector`
  gelu_tanh,  // adds `vector` and keeps the sum in `before`, each where defined, then takes GELU
  gelu_tanh_backward,  // multiplies by the derivative of GELU at `before`
};

// c = alpha op(a) op(b) + beta c for `batch` dense row-major matrices, f32 or bf16 with sums in
// f32; sizes and dtypes are already checked, m, n, k > 0. Plans are chosen once for each shape and
// alignment. `vector` and `before` have the dtype of c. Returns false, with nothing done, where
// cuBLASLt has no algorithm with that epilogue (logged once), or none of the product's precision.
// Throws Error with cuBLAS' status.
bool gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
          const Tensor& c, const GemmShape& shape, double alpha, double beta,
          Epilogue epilogue = Epilogue::none, const Tensor& vector = {}, const Tensor& before = {});

// Whether cuBLASLt, as it is asked for every product, is forbidden to round the partial sums of one
// that it cuts along k. Needs no device; for tests. Emulated builds have none.
bool sums_stay_in_float();

// "cuBLASLt 13.0.0".
std::string gemm_backend();

}  // namespace linnet::cuda
