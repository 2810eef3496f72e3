// Dropout of reads of slots, on tensor cores: the draws are those of the CPU, made once forward and
// once backward, where the first scan leaves dropped elements as a negative p. Internal to this
// folder.
//
// Operations: 5 products 32 x 32 -> 64 bits and 15 other integer instructions per weight, so for N
// = 64 1,280 per token and head. They run in other pipes than tensor cores; no bytes.
#pragma once

#include "attention/primitives/slot_attention/cuda/fast_reads.h"
#include "attention/tensor_core/lane_draws.h"
#include "core/cuda/random.h"

namespace linnet::cuda::slot_attention_fast::detail {

// The draws of a block's scan, in shared memory.
struct ScanDraws {
  RowDropout row;
  int64_t example, time, channel;  // time of the row's first token, channel of slot 0

  // Which weights of a token stay, of four slots from `slot` on: as bits.
  __device__ __forceinline__ uint32_t four(int token, int slot) const {
    const auto words = row.words(example, time + token, channel + slot);
    uint32_t kept = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) kept |= uint32_t{words[i] >= row.limit} << i;
    return kept;
  }
};

// By one thread; a barrier must follow.
__device__ __forceinline__ void begin_draws(ScanDraws* shared, const Dropout& dropout,
                                            const Scan& scan, const SlotReading& reading) {
  if (threadIdx.x != 0 || !dropout.drops) return;
  *shared = {dropout.row, dropout.examples != nullptr ? dropout.examples[scan.row] : scan.row,
             dropout.time_offset, reading.place(scan.head)};
  shared->row.key = key_of_step(dropout.row.key);
}

// Which of the weights of a warp's tokens stay, of a chunk that begins with `token`.
__device__ __forceinline__ uint32_t kept_slots(const ScanDraws& draws, const TileRows& tile,
                                               int token) {
  const int first = token + tile.warp * 16;
  return kept_of_rows(tile.lane, [&](int row, int slot) { return draws.four(first + row, slot); });
}

}  // namespace linnet::cuda::slot_attention_fast::detail
