// The chunks of tokens that Reformer sorts into the same or neighbouring buckets, for
// listed_attention.
#pragma once

#include "core/tensor.h"

namespace linnet {

struct ChunkContext {
  int64_t chunk = 64;   // tokens c of a chunk
  bool causal = false;  // keys behind the query are left out
  bool dedup = false;   // a key that is met several times counts once
  Tensor mask;          // u8 [B,T], or undefined
  Tensor spans;         // document_spans, or undefined
};

// The N places of all rounds: chunks of `size` after each other. Queries stand in them, and all of
// a chunk have one list of keys.
struct Chunks {
  int64_t size = 1;
  Tensor order;   // i32 [B,H,N]: 1 + the token in a place; 0: none
  Tensor places;  // i32 [B,H,rounds,T]: where a token stands in each round; -1: it is masked
  Tensor index;   // i32 [B,H,N / size,length]: tokens, those of the chunk before first; -1: none
  Tensor sight;   // i32 [B,H,N,3]: which of them a query sees, itself never
  Tensor bias;    // dedup: instead of the sight, 0 or -infinity [B,H,N,length]
};

// Of buckets i32 [B,T,H,rounds]: the tokens of all rounds, each filled up to a multiple of c, in
// the order (round, bucket, time), are cut into chunks; a query sees its own chunk and the one
// before it in each round, the first one's neighbour being the last of all. Masked tokens (whose
// bucket must be the last) stand nowhere. Documents of a row are sequences of their own; one of at
// most c tokens is one chunk, or part of one, and a row has twice as many places, which is always
// enough. A row of at most c tokens is one chunk in one round. `dtype`: of the bias.
Chunks make_chunks(const Tensor& buckets, const ChunkContext& context, DType dtype);

}  // namespace linnet
