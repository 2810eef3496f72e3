// How sequences are cut for blocks of their own where heads alone do not fill a GPU. Host code.
#pragma once

#include <algorithm>
#include <cstdint>

namespace linnet::cuda::tensor_core {

inline constexpr int64_t kMultiprocessors = 132;  // of an H100 or H200
inline constexpr int64_t kSplitChunk = 64;  // kChunk of tile_copies.h, which host code cannot read
inline constexpr int64_t kMinSplitChunks = 4;

// `count` splits of `tokens` tokens each, the last one of what is left.
struct SplitSizes {
  int64_t count = 1, tokens = 0;
};

// What it takes to make the states with which splits begin, in eighths of the pass that they are
// for: of a whole sequence, where blocks share it however it is cut; or of a split, where a block
// has one.
struct StateEighths {
  int64_t sequence = 0, split = 0;
};

// As many splits, none shorter than kMinSplitChunks chunks, as let `blocks` blocks a split end
// soonest on a GPU that runs `slots` blocks at once: whole waves of blocks.
inline SplitSizes split_sizes(int64_t tokens, int64_t blocks, int64_t slots,
                              const StateEighths& states) {
  const int64_t chunks = (tokens + kSplitChunk - 1) / kSplitChunk;
  SplitSizes best{1, tokens};
  const auto waves = [&](int64_t count) { return (blocks * count + slots - 1) / slots; };
  if (blocks == 0 || chunks < 2 * kMinSplitChunks) return best;
  // In eighths of a chunk's time.
  int64_t least = 8 * waves(1) * chunks;
  const int64_t most = std::min(chunks / kMinSplitChunks, std::max<int64_t>(1, 4 * slots / blocks));
  for (int64_t wanted = 2; wanted <= most; ++wanted) {
    const int64_t chunks_each = (chunks + wanted - 1) / wanted;
    const int64_t count = (chunks + chunks_each - 1) / chunks_each;
    const int64_t of_split = 8 * waves(count) + states.split * waves(count - 1);
    const int64_t time = of_split * chunks_each + states.sequence * chunks;
    if (time >= least) continue;
    least = time;
    best = {count, chunks_each * kSplitChunk};
  }
  return best;
}

}  // namespace linnet::cuda::tensor_core
