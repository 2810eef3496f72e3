// The steps of k-means over hashes: the same on the host and in kernels.
#pragma once

#include <cstdint>

namespace linnet {

constexpr int64_t bits_set(uint64_t x) {
  x -= x >> 1 & 0x5555555555555555u;
  x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
  x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
  return static_cast<int64_t>(x * 0x0101010101010101u >> 56);
}

// Number: type of the draws. A list is a row and head.
template <typename Number>
struct HammingRule {
  int64_t T = 0, H = 0, clusters = 0, bits = 0;
  const Number *starts = nullptr, *spares = nullptr;  // [clusters], [clusters,bits]
  const uint8_t* valid = nullptr;                     // [B,T]; null: all
  const int64_t* codes = nullptr;                     // [B,T,H]
  int64_t* centroids = nullptr;                       // [B,H,clusters]; -1: not in use
  int32_t* votes = nullptr;   // [B,H,clusters,bits + 1]: tokens with a bit; tokens
  int32_t* result = nullptr;  // [B,T,H]

  constexpr bool is_valid(int64_t list, int64_t t) const {
    return valid == nullptr || valid[list / H * T + t] != 0;
  }
  constexpr int64_t place(int64_t list, int64_t t) const {
    return (list / H * T + t) * H + list % H;
  }

  // The first centroid of cluster l.
  constexpr void seed(int64_t list, int64_t l) const {
    int64_t n = 0;
    for (int64_t t = 0; t < T; ++t) n += is_valid(list, t) ? 1 : 0;
    const int64_t used = n < clusters ? n : clusters;
    int64_t& centroid = centroids[list * clusters + l];
    centroid = -1;
    if (l >= used) return;
    const int64_t begin = l * n / used, run = (l + 1) * n / used - begin;
    const Number start = starts[l] > 0 && starts[l] < 1 ? starts[l] : Number{0};
    const auto offset = static_cast<int64_t>(start * static_cast<Number>(run));
    int64_t left = begin + (offset < run ? offset : run - 1);
    for (int64_t t = 0; t < T; ++t) {
      if (!is_valid(list, t) || left-- > 0) continue;
      centroid = codes[place(list, t)];
      return;
    }
  }

  constexpr void assign(int64_t list, int64_t t) const {
    int32_t nearest = -1;
    int64_t fewest = bits + 1;
    for (int64_t l = 0; is_valid(list, t) && l < clusters; ++l) {
      const int64_t centroid = centroids[list * clusters + l];
      if (centroid < 0) continue;
      const int64_t different = bits_set(static_cast<uint64_t>(centroid ^ codes[place(list, t)]));
      if (different >= fewest) continue;
      fewest = different;
      nearest = static_cast<int32_t>(l);
    }
    result[place(list, t)] = nearest;
  }

  // add(where) counts one more.
  template <typename Add>
  constexpr void vote(int64_t list, int64_t t, const Add& add) const {
    const int32_t l = result[place(list, t)];
    if (l < 0) return;
    int32_t* counts = votes + (list * clusters + l) * (bits + 1);
    for (int64_t bit = 0; bit < bits; ++bit) {
      if ((codes[place(list, t)] >> bit & 1) != 0) add(counts + bit);
    }
    add(counts + bits);
  }

  constexpr void move(int64_t list, int64_t l) const {
    int64_t& centroid = centroids[list * clusters + l];
    if (centroid < 0) return;
    const int32_t* counts = votes + (list * clusters + l) * (bits + 1);
    int64_t code = 0;
    for (int64_t bit = 0; bit < bits; ++bit) {
      const bool set =
          counts[bits] > 0 ? 2 * int64_t{counts[bit]} > counts[bits] : spares[l * bits + bit] > 0;
      code |= static_cast<int64_t>(set) << bit;
    }
    centroid = code;
  }
};

}  // namespace linnet
