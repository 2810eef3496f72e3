// Which keys a query of Reformer sees: lists for listed_attention.
#pragma once

#include "core/tensor.h"

namespace linnet {

struct ChunkContext {
  int64_t chunk = 64;   // tokens c of a chunk
  bool causal = false;  // keys behind the query are left out
  bool dedup = false;   // a key that several places hold counts once
  Tensor mask;          // u8 [B,T], or undefined
  Tensor spans;         // document_spans, or undefined
};

// i32 [B,H,T, rounds * 2c] of buckets i32 [B,T,H,rounds]: the tokens of all rounds, each filled up
// to a multiple of c, in the order (round, bucket, time), are cut into chunks; a query sees its own
// chunk and the one before it in each round, the first one's neighbour being the last of all. -1:
// an empty place. Masked tokens (whose bucket must be the last) and the query itself are left out,
// unless there is no other key: then the query is listed once. Documents of a row are sequences of
// their own; one of at most c tokens is one chunk.
Tensor chunk_lists(const Tensor& buckets, const ChunkContext& context);

// i32 [B,1,T,T]: the same for T <= c.
Tensor whole_lists(int64_t B, int64_t T, Device device, const ChunkContext& context);

}  // namespace linnet
