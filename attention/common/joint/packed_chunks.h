// Chunks of rows that hold packed documents: whole chunks are counted from the beginning of each
// document, and keep their order in the row.
#pragma once

#include "attention/common/joint/chunks.h"
#include "attention/common/joint/key_lists.h"

namespace linnet {

struct PackedChunks {
  int64_t size = 1, slots = 0;  // tokens of a chunk; whole chunks of a row, at most T / size
  Tensor tokens;     // i32 [B,slots * size]: the token in a place of a chunk; -1: there is none
  Tensor places;     // i32 [B,T]: slot * size + place of a token of a whole chunk; -1: of none
  Tensor documents;  // i32 [B,T]: the first token of a token's document
  Tensor earlier;    // i32 [B,T]: whole chunks in the row before the chunk of a token
};
PackedChunks packed_chunks(const Tensor& segments, int64_t size);

// [B slots,size,...] of x [B,T,...]; zeros where there is no chunk. Differentiable.
Variable packed_rows(const Variable& x, const PackedChunks& packed);
// As chunk_masks; mask u8 [B,T] may be undefined.
ChunkMasks packed_masks(const Tensor& mask, const PackedChunks& packed, int64_t rank);
// i32 [B,1,T,rule.length]: as key_lists, a list for every query, inside its document.
Tensor packed_lists(const KeyLists& rule, const PackedChunks& packed);

}  // namespace linnet
