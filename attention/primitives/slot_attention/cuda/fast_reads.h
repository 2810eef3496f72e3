// Memories of slots on tensor cores, in the registers of a block, and the reads of a tile's tokens
// from them. Internal to this folder; the equations are in fast_tiles.h.
#pragma once

#include <algorithm>

#include "attention/primitives/slot_attention/cuda/fast.h"
#include "attention/primitives/slot_attention/cuda/fast_tiles.h"

namespace linnet::cuda::slot_attention_fast::detail {

// The memory [64,M] of a head's slots in the registers of a block: warp w has slots 16 w to
// 16 w + 15.
template <int M>
struct MemoryTile {
  static constexpr int kStride = M + kPadding;
  ResultFragment memory[M / 8];
  int warp, lane;

  __device__ __forceinline__ int slot(int i) const { return warp * 16 + i / 2 * 8 + lane / 4; }
  __device__ __forceinline__ int column(int j, int i) const { return j * 8 + lane % 4 * 2 + i % 2; }

  // Columns from `first` on of slots from number `place` on, `width` each, in device memory; null:
  // zeros.
  __device__ __forceinline__ void load(const float* from, int64_t place, int slots, int first,
                                       int width) {
    warp = static_cast<int>(threadIdx.x) / 32;
    lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int j = 0; j < M / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool given = from != nullptr && slot(i) < slots && first + column(j, i) < width;
        memory[j].values[i] = given ? from[(place + slot(i)) * width + first + column(j, i)] : 0.0f;
      }
    }
  }
  __device__ __forceinline__ void store(float* to, int64_t place, int slots, int first,
                                        int width) const {
    if (to == nullptr) return;
#pragma unroll
    for (int j = 0; j < M / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (slot(i) >= slots || first + column(j, i) >= width) continue;
        to[(place + slot(i)) * width + first + column(j, i)] = memory[j].values[i];
      }
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int j = 0; j < M / 8; ++j) memory[j] = {};
  }
  // Multiplies this lane's two slots, or every slot by factor(slot).
  __device__ __forceinline__ void scale(const float (&factors)[2]) {
    scale_rows(memory, factors);
  }
  template <typename Factor>
  __device__ __forceinline__ void scale(const Factor& factor) {
    const float factors[2] = {factor(slot(0)), factor(slot(2))};
    scale_rows(memory, factors);
  }

  // Slots times factors, plus left^T right over a tile's tokens: left [64][kSlotStride] is 0 in
  // other rows of its squares, right [64][kStride]. Their sum is added by itself: tensor cores cut
  // off bits of what they add to, which over a long sequence would count.
  __device__ __forceinline__ void add(const kernel_bf16* left, const kernel_bf16* right,
                                      const TileRows& tile, const float (&factors)[2]) {
    const kernel_bf16* own = left + warp * 16;
    if (tile.has_all_squares()) {
      LeftFragment weights[kChunk / 16];
#pragma unroll
      for (int square = 0; square < kChunk / 16; ++square) {
        weights[square] = load_left_transposed(own + square * 16 * kSlotStride, kSlotStride, lane);
      }
#pragma unroll
      for (int j = 0; j < M / 16; ++j) {
        ResultFragment sums[2] = {};
#pragma unroll
        for (int square = 0; square < kChunk / 16; ++square) {
          add_square(weights[square], right + square * 16 * kStride + j * 16, sums);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float& value = memory[2 * j + i / 4].values[i % 4];
          value = value * factors[i % 4 / 2] + sums[i / 4].values[i % 4];
        }
      }
      return;
    }
    scale(factors);
#pragma unroll 1
    for (int square = tile.first_square(); square < tile.end_square(); ++square) {
      const LeftFragment weights =
          load_left_transposed(own + square * 16 * kSlotStride, kSlotStride, lane);
#pragma unroll
      for (int j = 0; j < M / 16; ++j) {
        ResultFragment sums[2] = {};
        add_square(weights, right + square * 16 * kStride + j * 16, sums);
        for (int half = 0; half < 2; ++half) memory[2 * j + half] += sums[half];
      }
    }
  }

  // In bf16, as products read it: shared [64][kStride].
  __device__ __forceinline__ void publish(kernel_bf16* to) const {
    publish(to, [](float first, float second) { return pack(first, second); });
  }
  // The part that publish() rounds away, so that both together have 16 bits of the memory.
  __device__ __forceinline__ void publish_rest(kernel_bf16* to) const {
    publish(to, [](float first, float second) {
      const uint32_t both = pack(first, second);
      return pack(first - low_of(both), second - high_of(both));
    });
  }

 private:
  __device__ __forceinline__ void add_square(const LeftFragment& weights, const kernel_bf16* right,
                                             ResultFragment (&sums)[2]) const {
    const RightFragments rights = load_right(right, kStride, lane);
    for (int half = 0; half < 2; ++half) multiply(weights, rights.halves[half], sums[half]);
  }
  template <typename Pair>
  __device__ __forceinline__ void publish(kernel_bf16* to, const Pair& pair) const {
#pragma unroll
    for (int j = 0; j < M / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        auto* at = reinterpret_cast<uint32_t*>(to + slot(2 * half) * kStride + column(j, 0));
        *at = pair(memory[j].values[2 * half], memory[j].values[2 * half + 1]);
      }
    }
  }
};

// A memory in a scan forward in time; of one that nobody reads there is no copy. After a tile it is
// that of means times the tile's totals: the next tile, or finish(), divides. Of given weights it
// is of sums.
template <int M, bool is_read = true>
struct ScannedMemory : MemoryTile<M> {
  kernel_bf16* shared;         // as the tile finds it
  const kernel_bf16* written;  // the chunk's keys or values

  __device__ __forceinline__ void publish() const {
    if constexpr (is_read) MemoryTile<M>::publish(shared);
  }
  // By the weights of a tile that begins, before its own total is known.
  __device__ __forceinline__ void begin_tile(const SlotScales& scales) {
    this->scale([&](int slot) { return scales.start[slot] * scales.inverse_total(slot); });
    publish();
  }
  __device__ __forceinline__ void write(const kernel_bf16* weights, const TileRows& tile) {
    this->add(weights, written, tile, {1, 1});
  }
  __device__ __forceinline__ void finish(const SlotScales& scales) {
    this->scale([&](int slot) { return scales.inverse_total(slot); });
  }
};

// Nothing was written by the segment that begins.
template <typename... Memories>
__device__ __forceinline__ void forget(const SlotScales& scales, Memories&... memories) {
  (memories.clear(), ...);
  (memories.publish(), ...);
  scales.forget_normalizers();
}
// Moves memories and normalizers past a tile. Calls freed() when nobody reads the tile any more.
template <typename Freed, typename... Memories>
__device__ __forceinline__ void write_tile(const SlotScales& scales, const kernel_bf16* weights,
                                           const TileRows& tile, const Freed& freed,
                                           Memories&... memories) {
  leave_totals(weights, scales, tile);
  (memories.write(weights, tile), ...);
  __syncthreads();  // nobody reads the tile or the memories any more; totals are there
  freed();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kSlots) scales.log_normalizer[thread] = scales.normalizer_after(thread);
}

// products = c_t (x_t . S_t) of a warp's readers x, for every slot: S is made of `memory` (bf16, by
// the tile's weights) and of what the tile's tokens `written` add. Where `counts`, sums = c_t too.
// Of given weights memories are sums, products x_t . S_t, and `summed` says what c counts.
template <int M, bool counts>
__device__ __forceinline__ void read_slots(const kernel_bf16* readers, const kernel_bf16* written,
                                           const kernel_bf16* memory, const kernel_bf16* weights,
                                           const float* start, const TileRows& tile,
                                           SlotRows& products, SlotRows& sums,
                                           uint32_t summed = ~0u) {
  constexpr int kStride = M + kPadding;
  const int warp = tile.warp, lane = tile.lane;
  products = {};
  readers += warp * 16 * kStride;
  LeftFragment own[M / 16];
#pragma unroll
  for (int i = 0; i < M / 16; ++i) {
    own[i] = load_left(readers + i * 16, kStride, lane);
    add_transposed<kSlots>(own[i], memory + i * 16, kStride, lane, products.parts);
  }
  if constexpr (counts) spread_slots(start, lane, sums);
#pragma unroll 1  // registers
  for (int square = tile.first_square(); square <= warp; ++square) {
    ResultFragment scores[2] = {};
#pragma unroll
    for (int i = 0; i < M / 16; ++i) {
      // Registers: a read without counts comes beside another one.
      if constexpr (M > 64 || !counts) own[i] = load_left(readers + i * 16, kStride, lane);
      add_transposed<16>(own[i], written + square * 16 * kStride + i * 16, kStride, lane, scores);
    }
    if (square == warp) cut_triangle<true>(scores, lane);
    const LeftFragment left = as_left(scores[0], scores[1]);
    const LeftFragment seen = ones_of<false>(square == warp, lane);
#pragma unroll
    for (int j = 0; j < kSlots / 16; ++j) {
      const RightFragments right =
          load_right(weights + square * 16 * kSlotStride + j * 16, kSlotStride, lane);
      for (int half = 0; half < 2; ++half) {
        multiply(left, right.halves[half], products.parts[2 * j + half]);
        if constexpr (counts) {
          multiply(seen, bits_of(right.halves[half], summed), sums.parts[2 * j + half]);
        }
      }
    }
  }
}

// sums += sum over slots of passed_t c_t S_t (given weights: passed_t S_t), S as in read_slots:
// terms of the slots for a warp's tokens.
template <int M>
__device__ __forceinline__ void gather_slots(const SlotRows& passed, const kernel_bf16* written,
                                             const kernel_bf16* memory, const kernel_bf16* weights,
                                             const TileRows& tile, ResultFragment (&sums)[M / 8]) {
  constexpr int kStride = M + kPadding;
  const int warp = tile.warp, lane = tile.lane;
  LeftFragment left[kSlots / 16];
#pragma unroll
  for (int i = 0; i < kSlots / 16; ++i) {
    left[i] = as_left(passed.parts[2 * i], passed.parts[2 * i + 1]);
  }
#pragma unroll 1  // registers
  for (int square = tile.first_square(); square <= warp; ++square) {
    ResultFragment scores[2] = {};
#pragma unroll
    for (int i = 0; i < kSlots / 16; ++i) {
      add_transposed<16>(left[i], weights + square * 16 * kSlotStride + i * 16, kSlotStride, lane,
                         scores);
    }
    if (square == warp) cut_triangle<true>(scores, lane);
    add_rows<M>(as_left(scores[0], scores[1]), written + square * 16 * kStride, kStride, lane,
                sums);
  }
#pragma unroll
  for (int i = 0; i < kSlots / 16; ++i) {
    add_rows<M>(left[i], memory + i * 16 * kStride, kStride, lane, sums);
  }
}

// Calls visitor(j, half, at) for pairs of slots of a warp's tokens in the tile, values 2 half and
// 2 half + 1 of part j: where they are in an array [tokens,H,N], of a chunk that begins with
// `token`.
template <typename Visitor>
__device__ __forceinline__ void visit_slots(const TileRows& tile, int64_t token, int heads,
                                            int head, int slots, const Visitor& visitor) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (!tile.has(half)) continue;
    const int64_t reader = token + tile.warp * 16 + half * 8 + tile.lane / 4;
#pragma unroll
    for (int j = 0; j < kSlots / 8; ++j) {
      const int slot = slot_of(j, 0, tile.lane);
      if (slot < slots) visitor(j, half, (reader * heads + head) * slots + slot);
    }
  }
}

// Adds elements of an array as in visit_slots; null: none.
__device__ __forceinline__ void add_slots(const float* elements, const TileRows& tile,
                                          int64_t token, int heads, int head, int slots,
                                          SlotRows& sums) {
  if (elements == nullptr) return;
  visit_slots(tile, token, heads, head, slots, [&](int j, int half, int64_t at) {
    sums.parts[j].values[2 * half] += elements[at];
    sums.parts[j].values[2 * half + 1] += elements[at + 1];
  });
}

// The way back: to those that are there already, or in their place.
__device__ __forceinline__ void leave_slots(const SlotRows& sums, bool accumulate,
                                            const TileRows& tile, int64_t token, int heads,
                                            int head, int slots, float* elements) {
  visit_slots(tile, token, heads, head, slots, [&](int j, int half, int64_t at) {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const float before = accumulate ? elements[at + odd] : 0.0f;
      elements[at + odd] = before + sums.parts[j].values[2 * half + odd];
    }
  });
}

// Calls body with the call of each launch, which has at most kSlots of all slots.
template <typename Pass, typename Body>
void for_slots(const Pass& call, const Body& body) {
  Pass part = call;
  SlotReading& reading = part.reading;
  reading.all = static_cast<int>(call.logits.K);
  for (; reading.first < reading.all; reading.first += kSlots) {
    reading.slots = std::min(reading.all - reading.first, kSlots);
    part.logits = reading.of(call.logits);
    body(part);
  }
}

// For each row, the mean of its logits by its probabilities, and the entropy of these (kNothing: no
// slot is in use), which together are the log of the sum of the exponentials.
struct RowMeans {
  float logits[2], entropies[2];
};

// Of row `half`: slots of the call to which nothing was written are in use, with reads of 0.
// Returns the largest read.
__device__ __forceinline__ float use_empty_slots(const SlotReading& how, int lane, int half,
                                                 float unused, float largest, SlotRows& reads) {
#pragma unroll
  for (int j = 0; j < kSlots / 8; ++j) {
#pragma unroll
    for (int i = 2 * half; i < 2 * half + 2; ++i) {
      float& read = reads.parts[j].values[i];
      if (read == unused && slot_of(j, i, lane) < how.slots) read = 0;
      largest = fmaxf(largest, read);
    }
  }
  return largest;
}

// products (of read_slots) -> probabilities, 0 of slots that are not in use; sums -> 1 / c, 0 of
// empty slots. log_sums: the log of each row's sum of exponentials. means: null where not wanted.
__device__ __forceinline__ void softmax(const SlotReading& how, int lane, SlotRows& products,
                                        SlotRows& sums, float (&log_sums)[2], RowMeans* means) {
  constexpr float kLogOf2 = 0.693147181f;
  constexpr float kUnused = -1e30f;             // of a slot: finite, so that 0 times it is 0
  const float unit = how.scale * 1.442695041f;  // exponentials are powers of 2
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = kUnused, sum = 0, below = 0;
#pragma unroll
    for (int j = 0; j < kSlots / 8; ++j) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        float& normalizer = sums.parts[j].values[i];
        float& read = products.parts[j].values[i];
        const bool written = normalizer > 0;
        normalizer = written ? reciprocal(normalizer) : 0.0f;
        read = written ? read * normalizer : kUnused;
        largest = fmaxf(largest, read);
      }
    }
    if (!how.mask_empty) largest = use_empty_slots(how, lane, half, kUnused, largest, products);
    largest = row_max(largest);
    const bool used = largest > kUnused;
    const float shift = used ? -largest * unit : 0.0f;
#pragma unroll
    for (int j = 0; j < kSlots / 8; ++j) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        float& value = products.parts[j].values[i];
        const float difference = fmaf(value, unit, shift);
        value = fast_exp2(difference);
        sum += value;
        below += value * difference;
      }
    }
    sum = row_sum(sum);
    const float inverse = used ? reciprocal(sum) : 0.0f, log_sum = fast_log(sum);
    const float most = used ? largest * how.scale : 0.0f;
    log_sums[half] = used ? most + log_sum : kNothing;
    if (means != nullptr) {
      below = row_sum(below) * inverse * kLogOf2;
      means->logits[half] = most + below;
      means->entropies[half] = used ? log_sum - below : kNothing;
    }
#pragma unroll
    for (int j = 0; j < kSlots / 8; ++j) {
      products.parts[j].values[2 * half] *= inverse;
      products.parts[j].values[2 * half + 1] *= inverse;
    }
  }
}

}  // namespace linnet::cuda::slot_attention_fast::detail
