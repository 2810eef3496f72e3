// Tensor cores on the emulator: what a warp's lanes compute together. Used by core/cuda/mma.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cuda/emulation/emulation.h"

namespace linnet::emulation {

// Bytes that a lane brings or gets at most; whole words of 4.
inline constexpr size_t kMaxExchanged = 64;

// Gathers what the 32 lanes of a whole warp bring, calls exchange(in, out) once on all of it, lane
// after lane, and gives every lane its part of `out`. Orders no memory.
void exchange_lanes(Site site, const void* in, size_t in_bytes, void* out, size_t out_bytes,
                    void (*exchange)(const void* in, void* out));

// d += a b for a [16,16], b [16,8] and d [16,8] in the fragments of mma.sync.m16n8k16: what each
// lane holds of them. Products of bf16 are exact in float; they are summed in float, in ascending
// order.
void mma_16x8x16(Site site, const uint32_t (&a)[4], const uint32_t (&b)[2], float (&d)[4]);

// Four 8 x 8 matrices of 16-bit numbers, of which lane l brings row l % 8 of matrix l / 8. Lane l
// gets of each matrix elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4; of its transpose where
// asked.
void deal_matrices(Site site, const uint32_t (&row)[4], bool transposed, uint32_t (&out)[4]);

}  // namespace linnet::emulation
