// Tiles of listed attention on the CPU: some queries of a list, and a chunk of its keys and values.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "attention/primitives/block_attention/tiles.h"
#include "attention/primitives/common/tile_gemm.h"
#include "attention/primitives/listed_attention/pattern.h"
#include "core/threads.h"

namespace linnet::listed_attention_detail {

using block_attention_detail::copy_padded;
using block_attention_detail::Workspace;

inline constexpr int64_t kQueries = 64;  // of a tile
// Places of a list that are gathered together: such a chunk stays in cache.
inline constexpr int64_t kPlaces = 256;
// Keys that are fetched before they are read: lists have no order.
inline constexpr int64_t kAhead = 8;

template <typename T>
void prefetch(const T* row, int64_t width) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t c = 0; c < width; c += kLine) __builtin_prefetch(row + c);
}

// The order of lists: those that begin with the same key after each other, since they have others
// in common, and no cache holds all keys of a long sequence.
template <typename T>
class ListOrder {
 public:
  explicit ListOrder(const ListedAttentionInputs<T>& in) : in_(in) {
    const int64_t all = in.index_rows * in.index_heads;
    lists_.resize(static_cast<size_t>(all * in.lists));
    parallel_for(all, 1, [&](int64_t begin, int64_t end) {
      std::vector<int32_t> before;  // lists that begin with a smaller key; [0]: empty ones
      for (int64_t i = begin; i < end; ++i) {
        before.assign(static_cast<size_t>(in.k.T) + 2, 0);
        const int32_t* index = in.index + i * in.lists * in.length;
        for (int64_t list = 0; list < in.lists; ++list) ++before[first_key(index, list) + 1];
        std::partial_sum(before.begin(), before.end(), before.begin());
        int32_t* to = lists_.data() + i * in.lists;
        for (int64_t list = 0; list < in.lists; ++list) {
          to[before[first_key(index, list)]++] = static_cast<int32_t>(list);
        }
      }
    });
  }
  // The n-th list of a row and head.
  int64_t at(int64_t b, int64_t h, int64_t n) const {
    const int64_t row = in_.index_rows == 1 ? 0 : b, head = in_.index_heads == 1 ? 0 : h;
    return lists_[static_cast<size_t>((row * in_.index_heads + head) * in_.lists + n)];
  }

 private:
  // 1 + the first key of a list, 0 if it is empty.
  size_t first_key(const int32_t* index, int64_t list) const {
    const int32_t* begin = index + list * in_.length;
    const int32_t* end = begin + in_.length;
    const int32_t* found = std::find_if(begin, end, [](int32_t key) { return key >= 0; });
    return found == end ? 0 : static_cast<size_t>(*found) + 1;
  }

  const ListedAttentionInputs<T>& in_;
  std::vector<int32_t> lists_;
};

// Some queries of one list and head, and the valid keys of a chunk of that list; a thread's own.
template <typename T>
struct ListTile {
  const ListedAttentionInputs<T>& in;
  const ListedAttentionOptions& options;
  int64_t k_stride, v_stride, length;  // K, V and the longest chunk, in whole vectors
  T *k, *v;                            // [length, k_stride], [length, v_stride]
  T *q, *weights;                      // [kQueries, k_stride], [kQueries, length]
  T *y, *dq;                           // [kQueries, v_stride], [kQueries, k_stride]
  T *dy, *dweights;                    // [kQueries, v_stride], [kQueries, length]
  T *wide_k, *wide_v;                  // products: [length, .]
  std::vector<int64_t> places, keys;   // of the gathered keys
  std::vector<int64_t> times;          // of the gathered queries
  // Which keys are gathered: where a list is one chunk, the tiles of its queries share it, and so
  // do lists that are equal.
  struct Chunk {
    int64_t b = -1, h = 0, list = 0, place = 0, first = 0, end = 0;
  } gathered;

  ListTile(const ListedAttentionInputs<T>& inputs, const ListedAttentionOptions& all_options)
      : in(inputs), options(all_options) {
    static thread_local Workspace<T> workspace;  // kept: a call has many tiles
    k_stride = simd::round_up<T>(in.q.K);
    v_stride = simd::round_up<T>(in.v.K);
    length = simd::round_up<T>(std::min(in.length, kPlaces));
    const int64_t both = k_stride + v_stride;
    workspace.rewind();
    workspace.reserve(2 * length * both + 2 * kQueries * (both + length) + 256);
    k = workspace.take(length * k_stride);
    v = workspace.take(length * v_stride);
    q = workspace.take(kQueries * k_stride);
    weights = workspace.take(kQueries * length);
    y = workspace.take(kQueries * v_stride);
    dq = workspace.take(kQueries * k_stride);
    dy = workspace.take(kQueries * v_stride);
    dweights = workspace.take(kQueries * length);
    wide_k = workspace.take(length * k_stride);
    wide_v = workspace.take(length * v_stride);
  }

  int64_t count() const { return static_cast<int64_t>(places.size()); }
  int64_t queries() const { return static_cast<int64_t>(times.size()); }

  // Calls body() on a list's keys and values, of which [first, end) are taken, chunk by chunk.
  template <typename Body>
  void for_chunks(int64_t b, int64_t h, int64_t list, int64_t first, int64_t end,
                  const Body& body) {
    for (int64_t place = 0; place < in.length; place += kPlaces) {
      const Chunk chunk{b, h, list, place, first, end};
      if (!is_gathered(chunk)) gather(chunk);
      gathered = chunk;
      if (!keys.empty()) body();
    }
  }
  const int32_t* index_of(const Chunk& chunk) const {
    const int64_t row = in.index_rows == 1 ? 0 : chunk.b, head = in.index_heads == 1 ? 0 : chunk.h;
    return in.index + ((row * in.index_heads + head) * in.lists + chunk.list) * in.length;
  }
  bool is_gathered(const Chunk& chunk) const {
    const auto& now = gathered;
    if (chunk.b != now.b || chunk.h != now.h || chunk.place != now.place ||
        chunk.first != now.first || chunk.end != now.end) {
      return false;
    }
    if (chunk.list == now.list) return true;
    const int32_t* index = index_of(chunk);
    const int64_t stop = std::min(in.length, chunk.place + kPlaces);
    return std::equal(index + chunk.place, index + stop, index_of(now) + chunk.place);
  }
  void gather(const Chunk& chunk) {
    const auto [b, h, list, place, first, end] = chunk;
    const int32_t* index = index_of(chunk);
    const int64_t g = h / (in.q.H / in.k.H);
    places.clear();
    keys.clear();
    const int64_t stop = std::min(in.length, place + kPlaces);
    for (int64_t l = place; l < stop; ++l) {
      if (l + kAhead < stop && index[l + kAhead] >= 0) {
        prefetch(in.k.at(b, index[l + kAhead], g), in.k.K);
        prefetch(in.v.at(b, index[l + kAhead], g), in.v.K);
      }
      if (index[l] < first || index[l] >= end) continue;
      if (!is_valid(in.key_mask, b, index[l], in.k.T)) continue;
      copy_padded(in.k.at(b, index[l], g), in.k.K, k + count() * k_stride, k_stride, 0);
      copy_padded(in.v.at(b, index[l], g), in.v.K, v + count() * v_stride, v_stride, 0);
      places.push_back(l);
      keys.push_back(index[l]);
    }
  }

  // Valid queries of [begin, end).
  void take_queries(int64_t b, int64_t h, int64_t begin, int64_t end) {
    times.clear();
    for (int64_t t = begin; t < end; ++t) {
      if (!is_valid(in.query_mask, b, t, in.q.T)) continue;
      copy_padded(in.q.at(b, t, h), in.q.K, q + queries() * k_stride, k_stride, 0);
      times.push_back(t);
    }
  }
  // Logits of these queries and the gathered keys, in `weights`.
  void take_logits(int64_t b, int64_t h) {
    tile_gemm<T>(queries(), count(), in.q.K, static_cast<T>(options.scale), {q, k_stride},
                 {k, k_stride, true}, Write::overwrite, weights, length);
    if (in.bias == nullptr) return;
    for (int64_t r = 0; r < queries(); ++r) {
      const T* bias = in.bias + bias_offset(b, h, times[r]);
      for (int64_t j = 0; j < count(); ++j) weights[r * length + j] += bias[places[j]];
    }
  }
  int64_t bias_offset(int64_t b, int64_t h, int64_t t) const {
    const int64_t row = in.bias_rows == 1 ? 0 : b, head = in.bias_heads == 1 ? 0 : h;
    return ((row * in.bias_heads + head) * in.q.T + t) * in.length;
  }

  // Calls body(begin, end) on the queries of a list, tile by tile.
  template <typename Body>
  void for_tiles(int64_t list, const Body& body) const {
    const int64_t end = std::min(in.q.T, (list + 1) * options.group);
    for (int64_t begin = list * options.group; begin < end; begin += kQueries) {
      body(begin, std::min(end, begin + kQueries));
    }
  }
  block_attention_detail::DropoutDraws draws(int64_t b, int64_t h) const {
    return draws_of(options, in.example_ids != nullptr ? in.example_ids[b] : b, h);
  }
};

}  // namespace linnet::listed_attention_detail
