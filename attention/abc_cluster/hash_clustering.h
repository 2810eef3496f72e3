// The steps of k-means over hashes, one item at a time: the same on the host and in kernels.
#pragma once

#include <cstdint>

namespace linnet {

// Arrays of all sequences m (rows, or segments), heads h, slots l. Codes of valid keys are not
// negative.
struct HashClustering {
  int64_t S = 0, H = 0, slots = 0, bits = 0;
  // i32 [sequences,3]: row, begin, end, and i32 [B,S]: the sequence of a token. Null: whole rows.
  const int32_t *spans = nullptr, *sequence = nullptr;
  const uint8_t* valid = nullptr;  // [B,S]; null: all
  const int64_t* codes = nullptr;  // [B,S,H]
  int64_t* centroids = nullptr;    // [sequences,H,slots]; -1: not in use
  uint8_t* votes = nullptr;        // [sequences,H,slots,bits]
  int32_t* clusters = nullptr;     // [B,S,H]

  // The result of vote() for a slot without keys.
  static constexpr uint8_t kNobody = 2;

  constexpr int64_t row(int64_t m) const { return spans == nullptr ? m : spans[3 * m]; }
  constexpr int64_t begin(int64_t m) const {
    return row(m) * S + (spans == nullptr ? 0 : spans[3 * m + 1]);
  }
  constexpr int64_t end(int64_t m) const {
    return row(m) * S + (spans == nullptr ? S : spans[3 * m + 2]);
  }
  constexpr bool is_valid(int64_t token) const { return valid == nullptr || valid[token] != 0; }

  // Item (m, h, l): the code of valid token number floor(l n / c), with n of them and c slots in
  // use.
  constexpr void seed(int64_t item) const {
    const int64_t l = item % slots, h = item / slots % H, m = item / slots / H;
    int64_t n = 0;
    for (int64_t token = begin(m); token < end(m); ++token) n += is_valid(token) ? 1 : 0;
    const int64_t c = n < slots ? n : slots;
    centroids[item] = -1;
    if (l >= c) return;
    int64_t left = l * n / c;
    for (int64_t token = begin(m); token < end(m); ++token) {
      if (!is_valid(token) || left-- > 0) continue;
      centroids[item] = codes[token * H + h];
      return;
    }
  }

  // Item (token, h): the nearest centroid.
  constexpr void assign(int64_t item) const {
    const int64_t h = item % H, token = item / H;
    clusters[item] = -1;
    if (!is_valid(token)) return;
    const int64_t m = sequence == nullptr ? token / S : sequence[token];
    int64_t fewest = bits + 1;
    for (int64_t l = 0; l < slots; ++l) {
      const int64_t centroid = centroids[(m * H + h) * slots + l];
      if (centroid < 0) continue;
      int64_t different = 0;
      for (int64_t left = centroid ^ codes[item]; left != 0; left &= left - 1) ++different;
      if (different >= fewest) continue;
      fewest = different;
      clusters[item] = static_cast<int32_t>(l);
    }
  }

  // Item (m, h, l, bit): whether most keys of the slot have it.
  constexpr void vote(int64_t item) const {
    const int64_t bit = item % bits, slot = item / bits;
    const int64_t l = slot % slots, h = slot / slots % H, m = slot / slots / H;
    int64_t keys = 0, set = 0;
    for (int64_t token = begin(m); token < end(m); ++token) {
      if (clusters[token * H + h] != l) continue;
      ++keys;
      set += codes[token * H + h] >> bit & 1;
    }
    votes[item] = keys == 0 ? kNobody : 2 * set > keys ? 1 : 0;
  }

  // Item (m, h, l): the centroid from its votes.
  constexpr void move(int64_t item) const {
    if (votes[item * bits] == kNobody) return;
    int64_t code = 0;
    for (int64_t bit = 0; bit < bits; ++bit) {
      code |= static_cast<int64_t>(votes[item * bits + bit]) << bit;
    }
    centroids[item] = code;
  }
};

}  // namespace linnet
