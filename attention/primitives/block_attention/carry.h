// Copies of tokens; and those that a sequence carries from one call to the next, together with
// their mask as states hold it.
#pragma once

#include <vector>

#include "attention/primitives/block_attention/block_attention.h"

namespace linnet {

// Copies `tokens` tokens of every row of `from` [B,.,...], from token from_token on, to those of
// `to` [B,.,...] from to_token on. One dtype, one device.
void copy_tokens(const Tensor& from, int64_t from_token, const Tensor& to, int64_t to_token,
                 int64_t tokens);

// The last `keep` tokens (all: keep < 0) of [past ; current], [B,P,...] and [B,T,...]. Of one row
// in host memory they lie behind those of `past` where there is room: a step copies its own tokens
// alone. `past` may be undefined.
Tensor joined_tokens(const Tensor& past, const Tensor& current, int64_t keep);

// tokens [B,P,...], and which of them are valid: i64 [B,P], 1 = valid; undefined: all.
struct CarriedTokens {
  std::vector<Variable> tokens;
  Variable mask;
};

// The last `keep` tokens (all: keep < 0) of [past ; current] with their mask: carry_tokens of every
// sequence and carry_mask, which say the rest. Past tokens may be undefined, all or none. On a CUDA
// device, where nothing needs gradients and there are no segments, at most two sequences and their
// mask are one launch. Throws Error on shapes that do not fit.
CarriedTokens carry_with_mask(const CarriedTokens& past, const std::vector<Variable>& current,
                              const Tensor& key_mask, const Tensor& segments, int64_t keep);

}  // namespace linnet
