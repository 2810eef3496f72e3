// Tokens in the order of their codes, for every row, head and hash; internal to
// sampled_collisions.
#pragma once

#include <cstdint>
#include <limits>

#include "core/tensor.h"

namespace linnet {

// Tokens with equal keys are neighbours, in the order of time.
struct SortedCodes {
  Tensor keys;   // i64 [B,H,hashes,T]: the code, then the first token of the document
  Tensor order;  // i32 [B,H,hashes,T]: the token
};

// The key of tokens that are left out: it sorts after all others.
inline constexpr int64_t kNoBucket = std::numeric_limits<int64_t>::max();
constexpr int64_t bucket_key(int32_t code, int32_t document) {
  return code < 0 ? kNoBucket : (static_cast<int64_t>(code) << 32 | document);
}

// Queries and keys of all buckets, on plain arrays.
struct BucketLists {
  int64_t T = 0, S = 0, H = 0, hashes = 0;
  const int64_t *query_keys = nullptr, *key_keys = nullptr;
  const int32_t *queries = nullptr, *keys = nullptr;
};

}  // namespace linnet
