// Reformer's hashes: the number of buckets, and the bucket of a vector.
#pragma once

#include "core/tensor.h"

namespace linnet {

// The buckets of one round, the second factor 1 where they are not factored.
struct BucketFactors {
  int64_t first = 2, second = 1;

  constexpr int64_t count() const { return first * second; }
  // Random directions that tell them apart: two buckets, or values of a factor, for each.
  constexpr int64_t directions() const { return (first + (second > 1 ? second : 0)) / 2; }
};

// How many buckets a sequence has.
struct BucketRule {
  int64_t chunk = 64;   // tokens of a chunk
  int64_t longest = 0;  // training length: longer sequences have as many buckets; 0: no limit
  int64_t fixed = 0;    // buckets, a power of two; 0: from the length
  int64_t limit = 128;  // more buckets than that are factored

  // The limit is 2 max(floor(sqrt(longest / chunk)), chunk).
  BucketRule(int64_t chunk, int64_t longest, int64_t fixed);

  // Fixed, or the power of two at or below twice the chunks of so many tokens; factored into two
  // powers of two, the second the larger.
  constexpr BucketFactors factors(int64_t tokens) const {
    const int64_t counted = longest > 0 && longest < tokens ? longest : tokens;
    const int64_t most = fixed > 0 ? fixed : 2 * ((counted + chunk - 1) / chunk);
    BucketFactors result;
    while (2 * result.first <= most) result.first *= 2;
    if (result.first <= limit) return result;
    const int64_t count = result.first;
    result = {2, 2};
    while (result.count() < count)
      (result.first < result.second ? result.first : result.second) *= 2;
    return result;
  }
  // Directions of a round that are enough for every length.
  int64_t directions() const;
};

// The documents of rows: i32 [2,B,T], for every token the first one of its own document and the one
// after the last, of segments i32 [B,T]; undefined where these are.
Tensor document_spans(const Tensor& segments);

// Inputs of hashing besides vectors and directions.
struct BucketContext {
  BucketRule rule;
  int64_t rounds = 1;
  Tensor mask;   // u8 [B,T], or undefined
  Tensor spans;  // document_spans
};

// i32 [B,T,H,rounds]: the buckets of x [B,T,H,K] by `rotations` [H, rounds * directions, K], of
// which a round uses as many as its buckets need: argmax([x R; -x R]), or where they are factored
// argmax over the first factor's directions plus `first` times argmax over the second's. Documents
// of a row have the buckets of their own length; those of at most a chunk have one. Masked tokens
// are in a bucket after all others. Products are computed in double, the same on every device.
Tensor hash_buckets(const Tensor& x, const Tensor& rotations, const BucketContext& context);

}  // namespace linnet
