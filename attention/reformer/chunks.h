// The chunks of tokens that Reformer sorts into the same or neighbouring buckets, for
// listed_attention.
#pragma once

#include "core/tensor.h"

namespace linnet {

struct ChunkContext {
  int64_t chunk = 64;   // tokens c of a chunk
  bool causal = false;  // keys after the query are left out
  bool dedup = false;   // a key that is met several times counts once
  Tensor mask;          // u8 [B,T], or undefined
  Tensor spans;         // document_spans, or undefined
};

// The N places of every round, in consecutive chunks of `size`. Each query has a place, and all
// queries of a chunk have one list of keys.
struct Chunks {
  int64_t size = 1;
  Tensor order;   // i32 [rounds,B,H,N]: the token in a place; -1: none
  Tensor places;  // i32 [rounds,B,H,T]: the place of a token; -1: it is masked
  Tensor index;   // i32 [rounds,B,H,N / size,length]: tokens, those of the chunk before first
  Tensor bias;    // [rounds,B,H,N,length]: -infinity where the query does not see the key

  // The tensors of one round, without the first dimension.
  Chunks of(int64_t round) const;
};

// From buckets i32 [B,T,H,rounds]: the tokens of all rounds, each padded to a multiple of c, in the
// order (round, bucket, time), are split into chunks. In each round a query sees its own chunk and
// the one before it (before the first chunk: the last of all), but never itself. Masked tokens
// (whose bucket must be the last) have no place. Documents of a row are sequences of their own; one
// of at most c tokens is one chunk, or part of one, and a row has twice as many places, which is
// always enough. A row of at most c tokens is one chunk in one round. `dtype`: of the bias.
Chunks make_chunks(const Tensor& buckets, const ChunkContext& context, DType dtype);

}  // namespace linnet
