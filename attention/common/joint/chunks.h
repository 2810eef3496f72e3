// Chunks of equal length of a sequence, as rows of a batch of their own.
#pragma once

#include "autograd/variable.h"

namespace linnet {

// x [B,T,...], padded with zeros to a multiple of `size` tokens, split into rows: [B n, size, ...].
// Differentiable.
Variable chunk_rows(const Variable& x, int64_t size);

// Masks of chunks of a sequence of T tokens whose mask u8 [B,T] may be undefined. A chunk has
// `overlap` further tokens on either side (overlapping_chunks.h).
struct ChunkMasks {
  Tensor tokens;  // u8 [B n, size + 2 overlap]: valid tokens; undefined: all
  Tensor chunks;  // u8 [B, n rank]: 1 `rank` times for each chunk that has a valid token;
                  // undefined: all have
};
ChunkMasks chunk_masks(const Tensor& mask, int64_t B, int64_t T, int64_t size, int64_t rank,
                       Device device, int64_t overlap = 0);

}  // namespace linnet
