// The rows of queries and keys that Skyformer samples.
#pragma once

#include "autograd/variable.h"
#include "core/random.h"

namespace linnet {

// Uniform draws in [0, 1), f64 [rows,count] on `device`, keyed by (example, index). examples i64
// [rows], on `device` too; undefined: all as example 0.
Tensor uniform_draws(const RandomKey& key, const Tensor& examples, int64_t rows, int64_t count,
                     Device device);

// The tokens i32 [B,r] that draws [B or 1,r] choose: number floor(draw n) of the n valid tokens; -1
// in rows without any. mask u8 [B,T] may be undefined.
Tensor sampled_tokens(const Tensor& draws, const Tensor& mask, int64_t B, int64_t T);

// [B,r,H,K]: q at the first r / 2 tokens, k at the others; 0 for token -1. q, k [B,T,H,K], f32 or,
// on the CPU, f64. Differentiable in both; a token may be there several times.
Variable sampled_rows(const Variable& q, const Variable& k, const Tensor& tokens);

}  // namespace linnet
