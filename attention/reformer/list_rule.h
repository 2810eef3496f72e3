// Lists of keys in chunks, one place at a time: the same on the host and in kernels.
#pragma once

#include <cstdint>

namespace linnet {

struct ListRule {
  int64_t T = 0, H = 0, rounds = 1, chunk = 1;
  int64_t width = 0;  // places of a round
  bool causal = false;
  const int32_t* order = nullptr;  // [B,H,rounds,T]: tokens by (document, bucket, time)
  const uint8_t* valid = nullptr;  // [B,T]; null: all
  const int32_t* spans = nullptr;  // [2,B,T]; null: whole rows
  int64_t tokens = 0;              // B T
  int32_t* index = nullptr;        // [B,H,T, rounds * width]

  // What the places of a query in one round have in common.
  struct Row {
    const int32_t* sorted;  // [rounds,T] of the row and head; null: the document is one chunk
    int64_t list, round, query;
    int64_t begin, n;  // of the document
    // Tokens of a round, empty places at its end included, and the first that is seen.
    int64_t each, first_round, first;
    bool valid;
    int32_t* index;  // [width]
  };
  // Number (b, h, round, token in order).
  constexpr Row row(int64_t number) const {
    const int64_t p = number % T, round = number / T % rounds, list = number / T / rounds;
    const int64_t token = list / H * T + p;
    // A document's tokens stand where they stood before, in another order.
    const int64_t begin = spans == nullptr ? 0 : spans[token];
    const int64_t n = spans == nullptr ? T : spans[tokens + token] - begin;
    const int32_t* sorted = order == nullptr ? nullptr : order + list * rounds * T;
    const int64_t query = sorted == nullptr ? p : sorted[round * T + p];
    const bool cut = n > chunk;
    const int64_t each = cut ? (n + chunk - 1) / chunk * chunk : chunk, all = rounds * each;
    const int64_t first = ((round * each + p - begin) / chunk * chunk - chunk + all) % all;
    return {cut ? sorted : nullptr,
            list,
            round,
            query,
            begin,
            n,
            each,
            first / each,
            first % each,
            is_valid(list, query),
            index + ((list * T + query) * rounds + round) * width};
  }
  // Place t of it. Two chunks reach into one other round at most.
  constexpr void place(const Row& at, int64_t t) const {
    int64_t key = -1;
    if (at.sorted == nullptr) {
      if (at.round == 0 && t < at.n) key = at.begin + t;
    } else {
      const bool next = at.first + t >= at.each;
      const int64_t round = next ? (at.first_round + 1) % rounds : at.first_round;
      const int64_t token = next ? at.first + t - at.each : at.first + t;
      if (token < at.n) key = at.sorted[round * T + at.begin + token];
    }
    const bool seen = at.valid && key >= 0 && key != at.query && !(causal && key > at.query) &&
                      is_valid(at.list, key);
    at.index[t] = seen ? static_cast<int32_t>(key) : -1;
  }
  // Item (b, h, round, token in order, place).
  constexpr void place(int64_t item) const { place(row(item / width), item % width); }

  // Item (b, h, query, place): the first of each key, from the lists in ascending order.
  constexpr void keep_first(int64_t item, const int32_t* sorted) const {
    const bool again = item % (rounds * width) > 0 && sorted[item] == sorted[item - 1];
    index[item] = again ? -1 : sorted[item];
  }

  // Item (b, h, query): itself where there is nothing else.
  constexpr void complete(int64_t item) const {
    int32_t* list = index + item * rounds * width;
    if (!is_valid(item / T, item % T)) return;
    for (int64_t t = 0; t < rounds * width; ++t) {
      if (list[t] >= 0) return;
    }
    list[0] = static_cast<int32_t>(item % T);
  }

 private:
  constexpr bool is_valid(int64_t list, int64_t token) const {
    return valid == nullptr || valid[list / H * T + token] != 0;
  }
};

// What a token is sorted by: its document, then its bucket.
constexpr int64_t bucket_order(int32_t document, int32_t bucket) {
  return static_cast<int64_t>(document) << 32 | static_cast<uint32_t>(bucket);
}

}  // namespace linnet
