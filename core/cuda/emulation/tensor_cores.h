// Tensor cores on the emulator: collectives of a warp's lanes. Used by core/cuda/mma.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cuda/emulation/emulation.h"

namespace linnet::emulation {

// Bytes that a lane passes or gets at most; whole words of 4.
inline constexpr size_t kMaxExchanged = 64;

// Gathers the inputs of the 32 lanes of a whole warp, lane after lane, calls exchange(in, out)
// once, and gives every lane its part of `out`. Orders no memory.
void exchange_lanes(Site site, const void* in, size_t in_bytes, void* out, size_t out_bytes,
                    void (*exchange)(const void* in, void* out));

// d += a b for a [16,16], b [16,8] and d [16,8] in the fragments of mma.sync.m16n8k16. Products of
// bf16 are exact in float; they are summed in float, in ascending order.
void mma_16x8x16(Site site, const uint32_t (&a)[4], const uint32_t (&b)[2], float (&d)[4]);

// Four 8 x 8 matrices of 16-bit elements, of which lane l passes row l % 8 of matrix l / 8. Lane l
// gets elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of each matrix, or of its transpose.
void deal_matrices(Site site, const uint32_t (&row)[4], bool transposed, uint32_t (&out)[4]);

}  // namespace linnet::emulation
