// BigBird's random blocks: the candidates of a row of blocks, and the choice among them by uniform
// draws.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/random.h"
#include "core/tensor.h"

namespace linnet {

// Any block outside the window, or the rules of the released code (Hugging Face, and the code that
// copied it).
enum class BlockRule : uint8_t { uniform, released };

// The blocks 1 ... last without some distinct excluded ones.
struct BlockCandidates {
  int64_t last = 0;
  int64_t excluded[4] = {-1, -1, -1, -1};

  // Number of excluded blocks up to and including `block`.
  constexpr int64_t excluded_to(int64_t block) const {
    int64_t count = 0;
    for (const int64_t no : excluded) count += no >= 1 && no <= block ? 1 : 0;
    return count;
  }
  constexpr int64_t count() const { return last - excluded_to(last); }
};

struct BlockChoice {
  BlockRule rule = BlockRule::uniform;
  int64_t tokens = 0, block = 1, random = 0;

  constexpr int64_t blocks() const { return (tokens + block - 1) / block; }
  // Rows 1 ... blocks - 2 of blocks; the first and the last one read everything.
  constexpr int64_t rows() const { return blocks() - 2; }
  // Whether there are too few blocks for a pattern: then every token reads all tokens.
  constexpr bool everything() const {
    return blocks() < (rule == BlockRule::released ? 6 + 2 * random : 5 + random);
  }
  constexpr BlockCandidates candidates(int64_t row) const {
    if (rule == BlockRule::uniform) return {blocks() - 2, {row - 1, row, row + 1, -1}};
    if (tokens == 1024 || tokens == 3072 || tokens == 4096) {
      const int64_t last = std::min(1024 / block - 1, blocks() - 2);
      // Its last two rows may repeat a block of the window.
      if (row >= blocks() - 3) return {last, {-1, -1, -1, -1}};
      return {last, {row - 1, row, row + 1, -1}};
    }
    const int64_t last = 2 * random + 3;
    return {last, {row - 1, row, row + 1, row == 1 ? last : row == last ? 1 : -1}};
  }
  // The choice of a row: distinct candidates, one per draw in [0, 1).
  template <typename Number>
  constexpr void choose(int64_t row, const Number* draws, int32_t* chosen) const {
    const BlockCandidates all = candidates(row);
    for (int64_t r = 0; r < random; ++r) {
      const int64_t left = all.count() - r;
      const double at = static_cast<double>(draws[r]) * static_cast<double>(left);
      const int64_t number = std::min(static_cast<int64_t>(std::max(at, 0.0)), left - 1) + 1;
      // The block up to which so many blocks are free.
      int64_t block = number, taken = 0;
      do {
        block = number + taken;
        taken = all.excluded_to(block);
        for (int64_t before = 0; before < r; ++before) taken += chosen[before] <= block ? 1 : 0;
      } while (number + taken != block);
      chosen[r] = static_cast<int32_t>(block);
    }
  }
};

// Lists of the rows between the first and the last one: the first block, the window, the last
// block, the random ones. A block that does not exist, or is listed already, leaves an empty place.
struct BlockLists {
  BlockChoice choice;

  constexpr int64_t length() const { return (5 + choice.random) * choice.block; }
  // `chosen`: the random blocks of that row.
  constexpr int32_t key(int64_t row, int64_t place, const int32_t* chosen) const {
    const int64_t part = place / choice.block, last = choice.blocks() - 1;
    if ((part == 1 && row == 1) || (part == 3 && row + 1 == last)) return -1;
    const int64_t block = part == 0   ? 0
                          : part == 4 ? last
                          : part < 4  ? row - 2 + part
                                      : chosen[part - 5];
    const int64_t j = block * choice.block + place % choice.block;
    return j < choice.tokens ? static_cast<int32_t>(j) : -1;
  }
};

// Number i of [heads, rows, random], uniform in [0, 1): 24 bits, which f32 holds exactly.
constexpr float block_draw(const RandomKey& key, int64_t rows, int64_t random, int64_t i) {
  const auto word = key.words(random_element(
      static_cast<uint64_t>(i / random / rows), static_cast<uint64_t>(i / random % rows),
      static_cast<uint64_t>(i % random), static_cast<uint64_t>(random)))[0];
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

// f32 of that shape, on the device of the choice.
Tensor block_draws(const RandomKey& key, const Shape& shape, Device device);
// i32 [H, rows, random] from draws [H, at least rows, random], f32 or f64.
Tensor choose_blocks(const BlockChoice& choice, const Tensor& draws);
// i32 [1, H, rows, length] from chosen blocks [H, rows, random].
Tensor block_index(const BlockChoice& choice, const Tensor& chosen);

}  // namespace linnet
