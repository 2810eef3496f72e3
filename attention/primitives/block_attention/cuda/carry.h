// Tokens and masks that a sequence carries from one call to the next, on a CUDA device;
// block_attention.cpp calls these.
#pragma once

#include <vector>

#include "core/tensor.h"

namespace linnet::cuda {

// `tokens` tokens of every row of `from` [B,.,...], from token from_token on, to those of `to`
// [B,.,...] from to_token on. Any dtype, the same for both.
void copy_tokens(const Tensor& from, int64_t from_token, const Tensor& to, int64_t to_token,
                 int64_t tokens);

// linnet::carry_mask into `out` (u8 [B,n] on the device): its last entry is token T - 1. The masks
// and segments (i32 [B,T]) may be undefined.
void carry_mask(const Tensor& past_mask, const Tensor& key_mask, const Tensor& segments, int64_t P,
                int64_t T, const Tensor& out);

// A sequence [B,T,...] that goes on after [B,P,...], which may be undefined; `to` [B,n,...] gets
// the last n of both. All in one dtype.
struct CarriedSequence {
  Tensor past, current, to;
};
// One or two sequences of as many tokens and the mask i64 [B,n] that belongs to them, in one
// launch: 2 bytes moved for every one that is kept. past_mask i64 [B,P] and key_mask u8 [B,T] may
// be undefined.
void carry_with_mask(const std::vector<CarriedSequence>& sequences, const Tensor& past_mask,
                     const Tensor& key_mask, const Tensor& mask);

}  // namespace linnet::cuda
