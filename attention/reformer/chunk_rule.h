// Places of tokens in chunks, and the keys that the queries of a chunk see: one item at a time, the
// same on the host and in kernels.
#pragma once

#include <cstdint>

namespace linnet {

struct ChunkRule {
  int64_t B = 0, H = 0, T = 0, rounds = 1;
  int64_t chunk = 1, places = 0;  // places of a round, whole chunks
  int64_t length = 1;  // of a list of keys: the chunk before, if there is one, and its own
  bool causal = false, dedup = false;
  const uint8_t* valid = nullptr;   // [B,T]; null: all
  const int32_t* spans = nullptr;   // [2,B,T], document_spans; null: a row is one document
  const int32_t* sorted = nullptr;  // [rounds,B,H,T]: by (document, bucket, time); null: by time
  int32_t* starts = nullptr;        // [B,T]: the place of a document's first token, if it has spans
  int32_t* order = nullptr;         // [rounds,B,H,places]: the token in a place; -1: none
  int32_t* placed = nullptr;        // [rounds,B,H,T]: the place of a token; -1: it is masked
  int32_t* index = nullptr;         // [rounds,B,H,chunks,length]

  // Row b: each document in the chunk in which the one before ends, if all of it fits there, else
  // from the next one on. At most T places stay empty, since as many tokens did not fit into them.
  constexpr void start_documents(int64_t b) const {
    int64_t used = 0;
    for (int64_t t = b * T; t < (b + 1) * T;) {
      const int64_t n = spans[B * T + t] - spans[t];
      if (used % chunk + n > chunk) used = (used + chunk - 1) / chunk * chunk;
      starts[t] = static_cast<int32_t>(used);
      used += n;
      t += n;
    }
  }

  // Token number p of a round in its order, item (round, b, h, p).
  constexpr void place(int64_t item) const {
    const int64_t p = item % T, list = item / T;
    // A document's tokens keep their set of places, in another order.
    const Document of = document(list, p);
    const int64_t token = sorted == nullptr ? p : sorted[item], to = of.start + p - of.begin;
    const bool seen = valid == nullptr || valid[row(list) + token] != 0;
    if (seen) order[list * places + to] = static_cast<int32_t>(token);
    placed[list * T + token] = seen ? static_cast<int32_t>(to) : -1;
  }

  // Item (round, b, h, chunk, place) of the lists.
  constexpr void list(int64_t item) const {
    const int64_t own = item / length * chunk, t = item % length - (length - chunk);
    const int64_t first = t < 0 ? chunk_before(own) : own;
    index[item] = first < 0 ? -1 : order[t < 0 ? first + chunk + t : first + t];
  }

  // The keys that a query sees: [begin, end) without the query itself.
  struct Sight {
    int32_t begin = 0, end = 0, own = -1;
    constexpr bool sees(int32_t key) const { return key >= begin && key < end && key != own; }
  };
  // Item (round, b, h, place).
  constexpr Sight sight(int64_t query) const {
    const int32_t token = order[query];
    if (token < 0) return {};
    const Document of = document(query / places, token);
    return {static_cast<int32_t>(of.begin), causal ? token : static_cast<int32_t>(of.end), token};
  }

  // Whether that query has met the key in place t of its list in an earlier round or place.
  constexpr bool met_before(int64_t query, int64_t t) const {
    const int64_t own = query / chunk * chunk, list = query / places;
    const int32_t key = index[query / chunk * length + t];
    if (t >= length - chunk && stands_in(key, chunk_before(own))) return true;
    for (int64_t earlier = list % (B * H); earlier < list; earlier += B * H) {
      const int64_t at = placed[earlier * T + order[query]];
      const int64_t first = earlier * places + at / chunk * chunk;
      if (stands_in(key, first) || stands_in(key, chunk_before(first))) return true;
    }
    return false;
  }

 private:
  struct Document {
    int64_t begin, end, start;  // its tokens, and the place of the first in every round
  };
  constexpr int64_t row(int64_t list) const { return list / H % B * T; }
  // The document of a token.
  constexpr Document document(int64_t list, int64_t token) const {
    if (spans == nullptr) return {0, T, 0};
    const int64_t begin = spans[row(list) + token];
    return {begin, spans[B * T + row(list) + token], starts[row(list) + begin]};
  }
  // The chunk before the one that begins at item (round, b, h, place): a document's first chunk
  // follows its last chunk of the round before. -1: none.
  constexpr int64_t chunk_before(int64_t first) const {
    // Masked tokens come after all others.
    if (order[first] < 0) return -1;
    const int64_t list = first / places;
    const Document of = document(list, order[first]);
    const int64_t tokens = of.end - of.begin;
    if (of.start < first % places) return first - chunk;
    if (tokens <= chunk) return -1;
    const int64_t lists = rounds * B * H, earlier = (list + lists - B * H) % lists;
    return earlier * places + (of.start + tokens - 1) / chunk * chunk;
  }
  // Whether a token is in the chunk that begins there.
  constexpr bool stands_in(int32_t token, int64_t first) const {
    if (first < 0) return false;
    return placed[first / places * T + token] / chunk == first % places / chunk;
  }
};

// Sort key of a token: its document, then its bucket.
constexpr int64_t bucket_order(int32_t document, int32_t bucket) {
  return static_cast<int64_t>(document) << 32 | static_cast<uint32_t>(bucket);
}

}  // namespace linnet
