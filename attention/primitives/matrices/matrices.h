// Small dense matrices, one for each head: products of tensors, and an inverse by iteration. f32,
// or f64 on the CPU; no bf16. On the CPU a matrix is one thread's: bitwise the same for any number
// of threads.
#pragma once

#include "attention/primitives/common/tile_gemm.h"
#include "autograd/variable.h"
#include "core/gemm.h"

namespace linnet {

// c (+)= alpha op(a) op(b) for every g of a [G,.,.], b [G,.,.], c [G,m,n]. Throws Error on shapes
// that do not fit.
void multiply_matrices(const Tensor& a, Transpose transpose_a, const Tensor& b,
                       Transpose transpose_b, const Tensor& c, double alpha = 1,
                       Write write = Write::overwrite);

// [B,n,H,n] with 1 where token and channel have one number: values of which attention makes its
// weights.
Tensor unit_values(int64_t B, int64_t n, int64_t H, DType dtype, Device device);

// The divisor of the first iterate: the largest column sum of each matrix, or that of all matrices
// together, which couples them.
enum class InverseNorm : uint8_t { matrix, batch };

// Approximates the (pseudo-)inverse of each a [G,p,p] by `steps` iterations of
//   Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4,   Z_0 = A^T / (largest column sum of A)
// (Razavi et al. 2014, as Nystroemformer uses it). It converges where A has no negative elements
// and no row whose sum is above 1, or is symmetric with eigenvalues in (0, 1]; rows and columns of
// zeros stay zeros. Differentiable through everything, the norm included (of several largest sums,
// through the first). Keeps every iterate for backward. 4 p^3 multiply-adds per step forward, 11
// p^3 backward. Throws Error unless a is [G,p,p].
Variable iterated_inverse(const Variable& a, int64_t steps, InverseNorm norm);

}  // namespace linnet
