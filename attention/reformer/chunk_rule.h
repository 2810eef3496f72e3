// Where tokens stand in chunks, and what the queries of a chunk see: one item at a time, the same
// on the host and in kernels.
#pragma once

#include <cstdint>
#include <limits>

namespace linnet {

struct ChunkRule {
  int64_t T = 0, H = 0, rounds = 1;
  int64_t chunk = 1, places = 0;  // places of a round, whole chunks
  int64_t length = 1;  // of a list of keys: the chunk before, if there is one, and its own
  bool causal = false, dedup = false;
  const uint8_t* valid = nullptr;   // [B,T]; null: all
  const int32_t* spans = nullptr;   // [2,B,T], document_spans; null: a row is one document
  const int32_t* sorted = nullptr;  // [B,H,rounds,T]: by (document, bucket, time); null: by time
  int64_t tokens = 0;               // B T
  int32_t* starts = nullptr;        // [B,T]: where a document's first token says its place; or null
  int32_t* order = nullptr;         // [B,H,rounds * places]: 1 + the token in a place; 0: none
  int32_t* placed = nullptr;        // [B,H,rounds,T]: the place of a token; -1: it is masked
  int32_t* index = nullptr;         // [B,H,chunks,length]

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

  // A query, the place it stands in and the keys that it may see.
  struct Query {
    int64_t list, place;
    const int32_t* keys;
    int32_t token, begin, end;
  };
  // Item (b, h, place).
  constexpr Query query(int64_t item) const {
    const int64_t all = rounds * places, of = item / all, at = item % all;
    const int32_t token = token_at(of, at);
    const int32_t* keys = index + item / chunk * length;
    if (token < 0) return {of, at, keys, token, 0, 0};
    const Document own = document(of, token);
    const int64_t end = causal ? token + 1 : own.end;
    return {of, at, keys, token, static_cast<int32_t>(own.begin), static_cast<int32_t>(end)};
  }
  // What is added to the logit of place t of its list. The query itself stands for nothing but
  // having no other key: once in a list, so that sums beside -1e5 do not round.
  constexpr float bias(const Query& query, int64_t t) const {
    constexpr float kNothing = -std::numeric_limits<float>::infinity(), kItself = -1e5f;
    const int32_t key = query.keys[t];
    if (key < query.begin || key >= query.end) return kNothing;
    if (key == query.token) return t == length - chunk + query.place % chunk ? kItself : kNothing;
    return dedup && was_met(query, t, key) ? kNothing : 0.0f;
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
  // Whether a query meets a key in a round or place before place t of this one.
  constexpr bool was_met(const Query& query, int64_t t, int64_t key) const {
    const int64_t here = query.place / chunk * chunk;
    for (int64_t round = 0; round < query.place / places; ++round) {
      const int64_t at = placed[(query.list * rounds + round) * T + query.token];
      const int64_t first = at / chunk * chunk;
      if (stands_in(query.list, key, first)) return true;
      if (stands_in(query.list, key, chunk_before(query.list, first))) return true;
    }
    return t >= length - chunk && stands_in(query.list, key, chunk_before(query.list, here));
  }
};

// What a token is sorted by: its document, then its bucket.
constexpr int64_t bucket_order(int32_t document, int32_t bucket) {
  return static_cast<int64_t>(document) << 32 | static_cast<uint32_t>(bucket);
}

}  // namespace linnet
