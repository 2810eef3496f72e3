// Where tokens stand in chunks, and what the queries of a chunk see: one item at a time, the same
// on the host and in kernels.
#pragma once

#include <cstdint>

#include "attention/primitives/listed_attention_pattern.h"

namespace linnet {

struct ChunkRule {
  int64_t T = 0, H = 0, rounds = 1;
  int64_t chunk = 1, places = 0;  // places of a round, whole chunks
  int64_t length = 1;  // of a list of keys: the chunk before, if there is one, and its own
  bool causal = false;
  const uint8_t* valid = nullptr;   // [B,T]; null: all
  const int32_t* spans = nullptr;   // [2,B,T], document_spans; null: a row is one document
  const int32_t* sorted = nullptr;  // [B,H,rounds,T]: by (document, bucket, time); null: by time
  int64_t tokens = 0;               // B T
  int32_t* starts = nullptr;        // [B,T]: where a document's first token says its place; or null
  int32_t* order = nullptr;         // [B,H,rounds * places]: 1 + the token in a place; 0: none
  int32_t* placed = nullptr;        // [B,H,rounds,T]: the place of a token; -1: it is masked
  int32_t* index = nullptr;         // [B,H,chunks,length]
  int32_t* sight = nullptr;         // [B,H,rounds * places,3]

  // Row b: each document in the chunk in which the one before ends, if all of it fits there, else
  // from the next one on. At most T places stay empty: as many tokens did not fit into them.
  constexpr void start_documents(int64_t b) const {
    int64_t used = 0;
    for (int64_t t = b * T; t < (b + 1) * T;) {
      const int64_t n = spans[tokens + t] - spans[t];
      if (used % chunk + n > chunk) used = (used + chunk - 1) / chunk * chunk;
      starts[t] = static_cast<int32_t>(used);
      used += n;
      t += n;
    }
  }

  // Token number p of a round in its order, item (b, h, round, p).
  constexpr void place(int64_t item) const {
    const int64_t p = item % T, round = item / T % rounds, list = item / T / rounds;
    // A document's tokens stand where they stood before, in another order.
    const Document of = document(list, p);
    const int64_t token = sorted == nullptr ? p : sorted[item];
    const bool seen = valid == nullptr || valid[list / H * T + token] != 0;
    const int64_t to = round * places + of.start + p - of.begin;
    if (seen) order[list * rounds * places + to] = static_cast<int32_t>(token + 1);
    placed[item - p + token] = seen ? static_cast<int32_t>(to) : -1;
  }

  // Item (b, h, chunk, place) of the lists.
  constexpr void list(int64_t item) const {
    const int64_t t = item % length, chunks = rounds * places / chunk;
    const int64_t first = item / length % chunks * chunk, of = item / length / chunks;
    const int64_t before = t < length - chunk ? chunk_before(of, first) : first - (length - chunk);
    index[item] = before < 0 && t < length - chunk ? -1 : token_at(of, before + t);
  }

  // Item (b, h, place): the keys that its token sees, as sight of listed attention.
  constexpr void look(int64_t item) const {
    const int64_t of = item / (rounds * places), token = token_at(of, item % (rounds * places));
    int32_t* to = sight + 3 * item;
    to[0] = to[1] = 0;
    to[2] = static_cast<int32_t>(token);
    if (token < 0) return;
    const Document own = document(of, token);
    to[0] = static_cast<int32_t>(own.begin);
    to[1] = static_cast<int32_t>(causal ? token : own.end);
  }

  // Item (b, h, place of a query, place of its list): whether the query sees the key there, and has
  // not met it in an earlier round or place.
  constexpr bool meets_first(int64_t item) const {
    const int64_t query = item / length, of = query / (rounds * places), t = item % length;
    const int64_t place = query % (rounds * places), token = token_at(of, place);
    const int32_t key = index[query / chunk * length + t];
    if (!listed_attention_detail::sees(sight + 3 * query, key)) return false;
    const bool before = stands_in(of, key, chunk_before(of, place / chunk * chunk));
    if (t >= length - chunk && before) return false;
    for (int64_t round = 0; round < place / places; ++round) {
      const int64_t at = placed[(of * rounds + round) * T + token], first = at / chunk * chunk;
      if (stands_in(of, key, first) || stands_in(of, key, chunk_before(of, first))) return false;
    }
    return true;
  }

 private:
  struct Document {
    int64_t begin, end, start;  // its tokens, and the place of the first in every round
  };
  // That of a token, or of one that stands for it.
  constexpr Document document(int64_t of, int64_t token) const {
    if (spans == nullptr) return {0, T, 0};
    const int64_t row = of / H * T, begin = spans[row + token];
    return {begin, spans[tokens + row + token], starts[row + begin]};
  }
  constexpr int32_t token_at(int64_t of, int64_t at) const {
    return order[of * rounds * places + at] - 1;
  }
  // The first place of the chunk before the one that begins at place `first`: a document's first
  // one follows its last of the round before. -1: none.
  constexpr int64_t chunk_before(int64_t of, int64_t first) const {
    // Masked tokens are behind all others.
    const int64_t token = token_at(of, first), round = first / places;
    if (token < 0) return -1;
    const Document own = document(of, token);
    if (round * places + own.start < first) return first - chunk;
    const int64_t n = own.end - own.begin, last = own.start + n - 1;
    if (n <= chunk) return -1;
    return (round + rounds - 1) % rounds * places + last / chunk * chunk;
  }
  constexpr bool stands_in(int64_t of, int64_t token, int64_t first) const {
    if (first < 0) return false;
    return placed[(of * rounds + first / places) * T + token] / chunk * chunk == first;
  }
};

// What a token is sorted by: its document, then its bucket.
constexpr int64_t bucket_order(int32_t document, int32_t bucket) {
  return static_cast<int64_t>(document) << 32 | static_cast<uint32_t>(bucket);
}

}  // namespace linnet
