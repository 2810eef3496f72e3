// Chunks that follow from the segments of a row, as functions that the CPU and the device share.
#pragma once

#include <cstdint>

#include "attention/common/joint/key_lists.h"

namespace linnet::packed_chunks_rule {

struct Plan {
  int64_t tokens, size, slots;
  const int32_t* segments;
  int32_t *taken, *places, *documents, *earlier;

  // Fills all of row b.
  constexpr void fill(int64_t b) const {
    const int64_t row = b * tokens;
    for (int64_t i = 0; i < slots * size; ++i) taken[b * slots * size + i] = -1;
    int64_t document = 0, begin = 0, done = 0, count = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      if (t > 0 && segments[row + t] != segments[row + t - 1]) document = t;
      const int64_t place = (t - document) % size;
      if (place == 0) {
        begin = t;
        done = count;
      }
      documents[row + t] = static_cast<int32_t>(document);
      earlier[row + t] = static_cast<int32_t>(done);
      places[row + t] = -1;
      if (place < size - 1) continue;
      for (int64_t i = 0; i < size; ++i) {
        taken[(b * slots + count) * size + i] = static_cast<int32_t>(begin + i);
        places[row + begin + i] = static_cast<int32_t>(count * size + i);
      }
      ++count;
    }
  }
};

// The key of a place of the list of query t.
constexpr int32_t key(const KeyLists& rule, int64_t t, int64_t document, int64_t earlier,
                      int64_t place) {
  const int64_t p = t - document;
  if (rule.kind == KeyLists::Kind::completed) {
    if (place >= p / rule.size * rule.rank) return -1;
    return static_cast<int32_t>(earlier * rule.rank - 1 - place);
  }
  const int64_t number =
      rule.kind == KeyLists::Kind::back ? t - place : t - p % rule.size - rule.before + place;
  return number >= document && number <= t ? static_cast<int32_t>(number) : -1;
}

}  // namespace linnet::packed_chunks_rule
