// Which keys sparse_fixed's queries see, as lists for listed_attention: places 0 ... block - 1 are
// the query's own block, the others the global columns in order.
#pragma once

#include <algorithm>
#include <limits>

#include "core/tensor.h"

namespace linnet {

// The global columns of every block: its first token and its last ones, or its last ones only.
// With several sets heads alternate between them: the last columns, the columns before those, ...
struct Columns {
  int64_t block = 1, count = 0;
  bool with_first = true;
  int64_t sets = 1;
  int64_t set = 0;  // of the head

  constexpr Columns of_head(int64_t head) const {
    return {block, count, with_first, sets, head % sets};
  }
  // Behind the last column of a block.
  constexpr int64_t end() const { return block - set * count; }

  // Column n of the sequence, n / count being its block.
  constexpr int64_t token(int64_t n) const {
    const int64_t inside = n % count, begin = n / count * block;
    if (with_first && inside == 0) return begin;
    return begin + end() - count + inside;
  }
  constexpr int64_t in_first(int64_t tokens) const { return (tokens + block - 1) / block * count; }
  // The token in a place of the list of block `own`; -1: it is listed in the other part already.
  constexpr int64_t listed(int64_t own, int64_t place, bool twice) const {
    if (place < block) return own * block + place;
    const int64_t j = token(place - block);
    return !twice && j / block == own ? -1 : j;
  }
};

// For rows that are one document, from its begin on: a list for `group` queries of one block.
struct BlockwiseLists {
  Columns columns;
  int64_t tokens = 0;
  bool twice = false;  // columns in the query's own block are listed in both parts
  bool causal = false;
  int64_t group = columns.block;  // divides it

  constexpr int64_t lists() const { return (tokens + group - 1) / group; }
  constexpr int64_t length() const { return columns.block + columns.in_first(tokens); }
  // -1 also for tokens that no query of the list sees.
  constexpr int32_t key(int64_t head, int64_t list, int64_t place) const {
    const int64_t j = columns.of_head(head).listed(list * group / columns.block, place, twice);
    const int64_t end = causal ? std::min(tokens, (list + 1) * group) : tokens;
    return j < end ? static_cast<int32_t>(j) : -1;
  }
  // Causal: 0 where a query sees the token in a place of its list, else -infinity.
  constexpr float bias(int64_t head, int64_t query, int64_t place) const {
    const bool sees = key(head, query / group, place) <= query;
    return sees ? 0.0f : -std::numeric_limits<float>::infinity();
  }
  // Number i of the biases [heads, tokens, length].
  constexpr float bias(int64_t i) const {
    return bias(i / length() / tokens, i / length() % tokens, i % length());
  }
};

// A list for every query, by its position in its document: causal, or of packed documents. Keys are
// [past ; the call's tokens]; noncausal ones have no past.
struct DocumentLists {
  Columns columns;
  int64_t past = 0, tokens = 0;
  bool causal = false;
  bool twice = false;

  constexpr int64_t length() const { return columns.block + columns.in_first(past + tokens); }
  // `positions`: of the row's tokens, or null for past, past + 1, ...
  constexpr int32_t key(const int32_t* positions, int64_t head, int64_t query,
                        int64_t place) const {
    const int64_t position = positions != nullptr ? positions[query] : past + query;
    const int64_t j = columns.of_head(head).listed(position / columns.block, place, twice);
    const int64_t at = past + query - position + j;
    if (j < 0 || at < 0 || at >= past + tokens || (causal && j > position)) return -1;
    // Behind the document another one begins, whose positions are lower.
    if (!causal && positions != nullptr && positions[at - past] != j) return -1;
    return static_cast<int32_t>(at);
  }
};

// i32 [1, heads, lists, length] on the device; 1 head serves all where there is one set of columns.
Tensor index_of(const BlockwiseLists& lists, int64_t heads, Device device);
// f32 [1, heads, tokens, length]: 0 for keys that a query sees, else -infinity.
Tensor bias_of(const BlockwiseLists& lists, int64_t heads, Device device);
// i32 [B, heads, tokens, length] beside positions i32 [B,tokens]; where these are undefined
// [1, heads, tokens, length] on the device.
Tensor index_of(const DocumentLists& lists, int64_t heads, const Tensor& positions, Device device);

}  // namespace linnet
