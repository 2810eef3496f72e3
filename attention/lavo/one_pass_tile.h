// What the forward and backward scans of LAVO's one pass share: the head at hand, a tile of its
// tokens in the cache, and the soft-max of the window.
#pragma once

#include <algorithm>
#include <limits>

#include "attention/lavo/one_pass_cpu.h"
#include "attention/primitives/chunked.h"
#include "attention/primitives/orthogonal_memory_plan.h"
#include "attention/primitives/simd.h"

namespace linnet::lavo_pass_detail {

using orthogonal_memory_detail::Basis;
using orthogonal_memory_detail::make_plan;
using orthogonal_memory_detail::memory_weights;
using orthogonal_memory_detail::Plan;
using orthogonal_memory_detail::Sequence;

// Queries whose logits are made together, one a lane.
inline constexpr int64_t kBlock = chunked::kBlock;
// At most so many tokens in a tile.
inline constexpr int64_t kTokens = chunked::kChunk;
static_assert(kLavoPassWindow <= kTokens);

template <typename T>
OrthogonalMemoryInputs<T> memory_inputs(const LavoPassInputs<T>& in) {
  OrthogonalMemoryInputs<T> memory;
  memory.q = memory.f = in.q;  // f has the shape of q
  memory.basis = in.basis;
  memory.rank = in.rank;
  memory.basis_head_stride = in.rank * in.q.K;
  memory.basis_row_stride = in.q.K;
  memory.spans = in.spans;
  return memory;
}

// Throws Error on inputs that do not fit.
template <typename T>
Plan make_pass_plan(const LavoPassInputs<T>& in, const LavoPassOptions& options);

// Whole windows of a sequence: groups [first, end), tokens [begin, begin + count) of it.
struct TileRange {
  int64_t first, end, begin, count;

  TileRange(const Sequence& s, int64_t first_group)
      : first(first_group),
        end(std::min(s.groups, first_group + kTokens / s.width)),
        begin(s.code_from(first)),
        count(s.code_from(end) - begin) {}
};

// Asks for tokens [begin, begin + count) of a sequence, as far as they exist.
template <bool kWrite, typename E>
inline void prefetch_rows(const SequenceView<E>& view, const Sequence& s, int64_t begin,
                          int64_t count, int64_t head) {
  chunked::prefetch_rows<kWrite>(view, s.row, s.query_begin + std::max<int64_t>(begin, 0),
                                 s.query_begin + std::min(begin + count, s.queries), head);
}

// Sizes of a call, and of the head at hand its basis and its table of logits: entry (j, lane) is
// what the logit of query `lane` of a block and of key j - history gains, counted from the block's
// first query; -infinity where the query does not see the key.
template <typename T>
struct Head {
  int64_t d, r, dp, rp;     // widths, and padded ones
  int64_t window, history;  // keys before a block that are in reach, in whole blocks
  int64_t keys;             // of a block
  T scale;
  Basis<T> basis;
  std::vector<T> table;  // [keys, kBlock]

  Head(const LavoPassInputs<T>& in, const LavoPassOptions& options)
      : d(in.q.K),
        r(in.rank),
        dp(chunked::padded(d)),
        rp(simd::round_up<T>(r)),
        window(options.window),
        history(chunked::padded(window - 1)),
        keys(history + kBlock),
        scale(static_cast<T>(options.scale)),
        table(static_cast<size_t>(keys * kBlock)) {}

  void load(const LavoPassInputs<T>& in, int64_t head) {
    basis.load(memory_inputs(in), head);
    const T* bias =
        in.bias ? in.bias + (in.bias_heads == 1 ? 0 : head) * (2 * window - 1) : nullptr;
    for (int64_t j = 0; j < keys; ++j) {
      for (int64_t lane = 0; lane < kBlock; ++lane) {
        const int64_t distance = lane + history - j;
        const bool seen = distance >= 0 && distance < window;
        table[j * kBlock + lane] = !seen  ? -std::numeric_limits<T>::infinity()
                                   : bias ? bias[window - 1 - distance]
                                          : T{0};
      }
    }
  }

  // Rows of a tile of keys, those of the history before it included, and room for padding.
  int64_t key_rows() const { return history + kTokens + kBlock; }

  // Rows of k or v for a tile: [history + padded(count), dp]; those before the sequence are zero.
  void load_keys(const SequenceView<const T>& from, const Sequence& s, const TileRange& tile,
                 int64_t head, T* rows) const {
    const int64_t before = std::min(history, tile.begin), missing = history - before;
    std::fill_n(rows, missing * dp, T{0});
    const int64_t first = s.query_begin + tile.begin - before;
    chunked::load_rows(from, nullptr, s.row, first, before + tile.count, head, rows + missing * dp,
                       dp);
    std::fill(rows + (history + tile.count) * dp,
              rows + (history + chunked::padded(tile.count)) * dp, T{0});
  }

  // Soft-max weights of the queries [block, block + kBlock) of a tile over the keys of which the
  // first stands in row `block`: out [keys, kBlock].
  void weigh(const TileRange& tile, int64_t block, const T* key_rows, const T* queries_turned,
             T* out) const {
    std::copy(table.begin(), table.end(), out);
    const int64_t missing = std::max<int64_t>(0, history - tile.begin - block);
    std::fill_n(out, missing * kBlock, -std::numeric_limits<T>::infinity());
    tile_gemm<T>(keys, kBlock, d, scale, {key_rows + block * dp, dp},
                 {queries_turned + block, kTokens}, Write::accumulate, out, kBlock);
    for (int64_t lane = 0; lane < kBlock; lane += simd::kLanes<T>) soft_max(out + lane);
  }

 private:
  // Of one vector of queries, over rows; four chains of operations at a time.
  void soft_max(T* column) const {
    using simd::Vector;
    constexpr int64_t kChains = 4;
    Vector<T> largest[kChains], total[kChains];
    for (int64_t c = 0; c < kChains; ++c) {
      largest[c] = simd::load(column + c * kBlock);
      total[c] = Vector<T>{};
    }
    for (int64_t j = kChains; j < keys; j += kChains) {
      for (int64_t c = 0; c < kChains; ++c) {
        largest[c] = simd::maximum<T>(largest[c], simd::load(column + (j + c) * kBlock));
      }
    }
    const Vector<T> shift = simd::maximum<T>(simd::maximum<T>(largest[0], largest[1]),
                                             simd::maximum<T>(largest[2], largest[3]));
    for (int64_t j = 0; j < keys; j += kChains) {
      for (int64_t c = 0; c < kChains; ++c) {
        const Vector<T> weight = simd::exp<T>(simd::load(column + (j + c) * kBlock) - shift);
        total[c] += weight;
        simd::store(column + (j + c) * kBlock, weight);
      }
    }
    const Vector<T> inverse = T{1} / ((total[0] + total[1]) + (total[2] + total[3]));
    for (int64_t j = 0; j < keys; ++j) {
      simd::store(column + j * kBlock, inverse * simd::load(column + j * kBlock));
    }
  }
};

}  // namespace linnet::lavo_pass_detail
