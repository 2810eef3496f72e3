// How the kernels of the orthogonal memory group tokens of sequences: groups of tokens that read
// the same sums (windows, single tokens, whole sequences), and tiles of rows copied into the cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "attention/primitives/common/chunked.h"
#include "attention/primitives/common/simd.h"
#include "attention/primitives/common/tile_gemm.h"
#include "attention/primitives/orthogonal_memory/cpu.h"
#include "core/threads.h"

namespace linnet::orthogonal_memory_detail {

// Rows of a tile, at most.
inline constexpr int64_t kRows = 64;

// One sequence. Group k of its tokens fills sum first_group + k.
struct Sequence {
  int64_t row, query_begin, queries, code_begin, codes;
  int64_t start, width;  // position of token 0; positions of a group
  bool whole, carries_in, carries_out;
  int64_t first_group, groups;

  int64_t group_of(int64_t query) const {
    return whole ? 0 : (start + query) / width - start / width;
  }
  // The codes of group k: [code_from(k), code_from(k + 1)).
  int64_t code_from(int64_t k) const {
    if (whole) return k == 0 ? 0 : codes;
    return std::clamp<int64_t>((start / width + k) * width - start, 0, codes);
  }
  // The last group goes on in the next call.
  bool last_is_partial() const { return !whole && groups > 0 && (start + codes) % width != 0; }
};

// All sequences; how many valid tokens each group holds, and how many its readers see.
struct Plan {
  std::vector<Sequence> sequences;
  std::vector<int64_t> valid, seen;
  int64_t memories = 0;  // M
  // Reads include the own group.
  bool inclusive = false;
};

// Throws Error unless inputs and options fit together.
template <typename T>
Plan make_plan(const OrthogonalMemoryInputs<T>& in, const OrthogonalMemoryOptions& options);

// Sums of valid codes of groups [begin, end) of a sequence, out [end - begin, d].
template <typename T>
void sum_codes(const OrthogonalMemoryInputs<T>& in, const Sequence& sequence, int64_t head,
               int64_t begin, int64_t end, T* out);

// A head's basis: its rows [r, d] where they are and, transposed and padded with zeros, columns
// [d, padded r].
template <typename T>
struct Basis {
  TileOperand<T> rows{nullptr, 0};
  int64_t padded = 0;
  std::unique_ptr<T[]> columns;

  void load(const OrthogonalMemoryInputs<T>& in, int64_t head) {
    const int64_t width = in.q.K;
    rows = {in.basis + head * in.basis_head_stride, in.basis_row_stride};
    padded = simd::round_up<T>(in.rank);
    // The rank is that of all heads: there is room, and padding stays zero.
    if (!columns) {
      columns = std::make_unique_for_overwrite<T[]>(static_cast<size_t>(width * padded));
      for (int64_t c = 0; padded > in.rank && c < width; ++c) {
        std::fill_n(columns.get() + c * padded + in.rank, padded - in.rank, T{0});
      }
    }
    chunked::transpose(rows.data, rows.stride, in.rank, width, columns.get(), padded);
  }
};

// The bases of all heads.
template <typename T>
std::vector<Basis<T>> load_bases(const OrthogonalMemoryInputs<T>& in) {
  std::vector<Basis<T>> bases(static_cast<size_t>(in.q.H));
  parallel_for(in.q.H, 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) bases[head].load(in, head);
  });
  return bases;
}

// sums [groups, M, r] of B f by group, then (in place) of everything that readers of the group see;
// state_out is written on the way.
template <typename T>
void sum_groups(const OrthogonalMemoryInputs<T>& in, const Plan& plan,
                const std::vector<Basis<T>>& bases, T* sums);
template <typename T>
void accumulate_groups(const OrthogonalMemoryInputs<T>& in, const Plan& plan, T* sums,
                       const OrthogonalMemoryState<T, int64_t>& state_out);

// One token's softmax weights p over the rank, in place of its projections B q; `mean` is padded
// with zeros. weights[l] = 0 beyond the rank.
template <typename T>
inline void memory_weights(int64_t rank, int64_t padded, T scale, const T* mean, T* weights) {
  using simd::kLanes;
  using simd::Vector;
  const T nothing = -std::numeric_limits<T>::infinity();
  Vector<T> largest = simd::broadcast<T>(nothing);
  for (int64_t l = 0; l < padded; l += kLanes<T>) {
    Vector<T> logit = scale * simd::load(mean + l) * simd::load(weights + l);
    for (int64_t lane = rank - l; lane < kLanes<T>; ++lane) logit[lane] = nothing;
    simd::store(weights + l, logit);
    largest = simd::maximum<T>(largest, logit);
  }
  const T shift = simd::max<T>(largest);
  Vector<T> total = {};
  for (int64_t l = 0; l < padded; l += kLanes<T>) {
    const Vector<T> weight = simd::exp<T>(simd::load(weights + l) - shift);
    total += weight;
    simd::store(weights + l, weight);
  }
  const T factor = T{1} / simd::sum<T>(total);
  for (int64_t l = 0; l < padded; l += kLanes<T>) {
    simd::store(weights + l, factor * simd::load(weights + l));
  }
}

// Factors of dropout on the weights of query t of a row's head, in `kept`, zeros beyond the rank;
// null where nothing is dropped.
template <typename T>
const T* kept_weights(const OrthogonalMemoryInputs<T>& in, const OrthogonalMemoryOptions& options,
                      int64_t row, int64_t t, int64_t head, std::vector<T>& kept);

// Queries (or their gradients) of a tile, rows of masked ones zero: out [count, d].
template <typename T>
void load_rows(const SequenceView<const T>& from, const uint8_t* mask, int64_t row, int64_t begin,
               int64_t count, int64_t head, T* out) {
  for (int64_t i = 0; i < count; ++i) {
    if (is_valid(mask, row, begin + i, from.T)) {
      std::copy_n(from.at(row, begin + i, head), from.K, out + i * from.K);
    } else {
      std::fill_n(out + i * from.K, from.K, T{0});
    }
  }
}

}  // namespace linnet::orthogonal_memory_detail
