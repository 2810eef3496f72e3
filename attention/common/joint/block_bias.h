// Biases of the logits of a block's queries and keys, by their distance.
#pragma once

#include "attention/common/joint/key_lists.h"
#include "autograd/variable.h"

namespace linnet {

// The T5 bucket (Raffel et al. 2020) of a key at that distance (key - query): exact near by,
// logarithmic up to `farthest`. Causal: distances above 0 are in the bucket of 0; otherwise either
// side has half of the buckets.
int64_t t5_bucket(int64_t distance, bool causal, int64_t buckets, int64_t farthest);

// The distances of the places of lists of kind `block`: first ... first + count - 1.
struct BlockDistances {
  int64_t first, count;
};
BlockDistances block_distances(const KeyLists& rule);

// [1,H,T,rule.length], or with the first tokens of documents (i32 [B,T]) [B,H,T,rule.length]:
// values [count,H] at the distance of a query and a place of its list. Differentiable.
Variable block_bias(const Variable& values, const KeyLists& rule, int64_t T,
                    const Tensor& documents);

}  // namespace linnet
