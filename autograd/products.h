// Products of matrices and the solution of triangular systems, for any number of leading
// dimensions.
#pragma once

#include "autograd/variable.h"
#include "core/gemm.h"

namespace linnet {

// op(a) op(b) of the last two dimensions: a [...,m,k] times b [...,k,n] -> [...,m,n], where op
// transposes them. Leading dimensions are equal, or b has none and serves all. One dtype, f32, f64
// or bf16 (sums in f32). Throws Error naming both shapes when they do not fit.
Variable matmul(const Variable& a, const Variable& b, Transpose transpose_a = Transpose::no,
                Transpose transpose_b = Transpose::no);

// X of (I + L) X = B: L [...,n,n], of which only the elements below the diagonal are read, and B
// [...,n,m] -> X [...,n,m], by forward substitution; leading dimensions are equal. One dtype:
// f32, bf16 (solved in f32), or f64 on the CPU. G n^2 m / 2 multiply-adds forward, three times as
// many backward.
Variable unit_triangular_solve(const Variable& lower, const Variable& b);

}  // namespace linnet
