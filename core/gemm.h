// Matrix products on tensors: oneDNN for f32 and bf16, Eigen for f64 and where oneDNN is missing.
#pragma once

#include "core/tensor.h"

namespace linnet {

enum class Transpose : bool { no = false, yes = true };

// c = alpha * op(a) * op(b) + beta * c. All row-major; leading dimensions are flattened, so that an
// activation [B, T, E] counts as [B*T, E]. a and b have one floating dtype; c has the same one, or
// f32 for bf16 operands. beta = 0 never reads c. Throws Error naming the three shapes on mismatch.
// Inside a SmallStep a f32 or bf16 product of few rows with a transposed b gives a row the same
// bits whatever the other rows are (core/row_products.h).
void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
          const Tensor& c, double alpha = 1, double beta = 0);

// c = op(a) op(b) + bias: bias [n], of the dtype of c, is added to every row before c is rounded.
// On a GPU the product's own epilogue does it.
void gemm_bias(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
               const Tensor& c, const Tensor& bias);

// c = gelu_tanh(op(a) op(b) + bias), GELU approximated by tanh; `before`, where defined, receives
// the argument of GELU: shape and dtype of c. bias as above, or undefined. Only where a GPU's
// library does it in the product: returns false, with nothing done, on the CPU, and for rows of
// `before` that are not a multiple of 8 long.
bool gemm_gelu_tanh(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
                    const Tensor& c, const Tensor& bias, const Tensor& before);

// c = op(a) op(b), each element times the derivative of gelu_tanh at that element of `before`,
// which gemm_gelu_tanh kept (shape and dtype of c). Returns false as there, and for rows of c that
// are not a multiple of 8 long.
bool gemm_gelu_tanh_backward(const Tensor& a, Transpose transpose_a, const Tensor& b,
                             Transpose transpose_b, const Tensor& c, const Tensor& before);

// c = a^T b + beta c, and row [m] = the sums over the rows of a [.., m], added to its elements
// when `accumulate`: the gradients of a linear map's weight and bias. On a GPU the product's
// epilogue makes the sums where row has the dtype of c.
void gemm_row_sums(const Tensor& a, const Tensor& b, const Tensor& c, double beta,
                   const Tensor& row, bool accumulate);

// The same as gemm for every g of a [G, ., .], b [G, ., .], c [G, m, n].
void batched_gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
                  const Tensor& c, double alpha = 1, double beta = 0);

// What a product [m,k] x [k,n] of that dtype takes, in multiply-adds of a product of one row, which
// reading the matrix bounds: with many rows, and in bf16, more of them are done in that time
// (tools/bench/results/cpu.md). It decides the threads of a product (core/threads.h).
int64_t gemm_work(int64_t m, int64_t n, int64_t k, DType dtype);

// Floating-point operations (2 m n k) of all products since the program began: for benchmarks.
double gemm_flop_count();
// Those of them that were batched: products of tokens with tokens, as a rule.
double batched_gemm_flop_count();

// "oneDNN 2.6.3" or "Eigen 3.4.0": for environment records and benchmarks.
std::string gemm_backend();

}  // namespace linnet
