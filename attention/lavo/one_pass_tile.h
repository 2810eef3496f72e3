// Shared code of the forward and backward scans of LAVO's one pass: the current head, a tile of its
// tokens in the cache, and the softmax of the window.
#pragma once

#include <algorithm>
#include <limits>

#include "attention/lavo/one_pass_band.h"
#include "attention/lavo/one_pass_cpu.h"
#include "attention/primitives/common/chunked.h"
#include "attention/primitives/common/simd.h"
#include "attention/primitives/orthogonal_memory/plan.h"

namespace linnet::lavo_pass_detail {

using orthogonal_memory_detail::Basis;
using orthogonal_memory_detail::make_plan;
using orthogonal_memory_detail::memory_weights;
using orthogonal_memory_detail::Plan;
using orthogonal_memory_detail::Sequence;

// Tokens of a tile; the last one of a sequence has fewer.
inline constexpr int64_t kTokens = chunked::kChunk;
inline constexpr int64_t kBlocks = kTokens / kBlock;
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

// The number of token t of a sequence in an array [B,H,T,.].
template <typename T>
inline int64_t token_of(const LavoPassInputs<T>& in, const Sequence& s, int64_t head, int64_t t) {
  return (s.row * in.q.H + head) * in.q.T + s.query_begin + t;
}

// Layout of the weights of windows: sequence by sequence, in it head by head; a head's tokens in
// whole blocks, then zeros as far as a window reaches.
struct Kept {
  std::vector<int64_t> starts;  // of every sequence, one head
  int64_t heads, tokens = 0;    // of all sequences, one head

  Kept(const Plan& plan, int64_t heads, int64_t reach) : heads(heads) {
    for (const Sequence& s : plan.sequences) {
      starts.push_back(tokens);
      tokens += chunked::padded(s.queries) + reach;
    }
    starts.push_back(tokens);
  }
  int64_t token(const Plan& plan, const Sequence& s, int64_t head, int64_t t) const {
    const auto number = static_cast<size_t>(&s - plan.sequences.data());
    return starts[number] * heads + (starts[number + 1] - starts[number]) * head + t;
  }
};

// Tokens [begin, begin + count) of a sequence. Windows [first, end) have tokens in it; the first
// and the last may have others in the tiles beside it.
struct Tile {
  int64_t begin, count, first, end;

  Tile(const Sequence& s, int64_t begin_token)
      : begin(begin_token),
        count(std::min(kTokens, s.queries - begin)),
        first(s.group_of(begin)),
        end(s.group_of(begin + count - 1) + 1) {}

  // The tokens of window k, counted from the tile's first.
  int64_t from(const Sequence& s, int64_t k) const {
    return std::max<int64_t>(s.code_from(k) - begin, 0);
  }
  int64_t to(const Sequence& s, int64_t k) const {
    return std::min(s.code_from(k + 1) - begin, count);
  }
  // Whether window k has its first, its last token here.
  bool begins(const Sequence& s, int64_t k) const { return s.code_from(k) >= begin; }
  bool ends(const Sequence& s, int64_t k) const { return s.code_from(k + 1) <= begin + count; }
};

// Prefetches tokens [begin, begin + kBlock) of a sequence, as far as they exist: one block before
// each product, so that prefetches never delay the processor's own loads.
template <bool kWrite, typename E>
inline void prefetch_block(const SequenceView<E>& view, const Sequence& s, int64_t begin,
                           int64_t head) {
  chunked::prefetch_rows<kWrite>(view, s.row, s.query_begin + std::max<int64_t>(begin, 0),
                                 s.query_begin + std::min(begin + kBlock, s.queries), head);
}

// Rows of tokens [begin, end) of a sequence, those before its first token zero: out [end - begin,
// stride].
template <typename T>
void load_tokens(const SequenceView<const T>& from, const Sequence& s, int64_t begin, int64_t end,
                 int64_t head, T* out, int64_t stride) {
  const int64_t missing = std::clamp<int64_t>(-begin, 0, end - begin);
  std::fill_n(out, missing * stride, T{0});
  chunked::load_rows(from, nullptr, s.row, s.query_begin + begin + missing, end - begin - missing,
                     head, out + missing * stride, stride);
}

// Sizes of a call, and the current head's basis and table of logit biases: entry (slot, lane) is
// added to the logit of a block's query `lane`, -infinity where the query does not see the key.
template <typename T>
struct Head {
  int64_t d, r, dp, rp;   // widths, and padded ones
  int64_t window, reach;  // reach: in whole blocks
  T scale;
  Basis<T> basis;
  std::vector<T> table;  // [reach, kBlock]

  Head(const LavoPassInputs<T>& in, const LavoPassOptions& options)
      : d(in.q.K),
        r(in.rank),
        dp(chunked::padded(d)),
        rp(simd::round_up<T>(r)),
        window(options.window),
        reach(chunked::padded(window)),
        scale(static_cast<T>(options.scale)),
        table(static_cast<size_t>(slots())) {}

  // Weights of a block.
  int64_t slots() const { return reach * kBlock; }
  // How far before the query of that lane the key of a slot is.
  int64_t distance(int64_t slot, int64_t lane) const {
    return lane - slot + (lane < slot ? reach : 0);
  }

  void load(const LavoPassInputs<T>& in, int64_t head) {
    basis.load(memory_inputs(in), head);
    const T* bias =
        in.bias ? in.bias + (in.bias_heads == 1 ? 0 : head) * (2 * window - 1) : nullptr;
    for (int64_t slot = 0; slot < reach; ++slot) {
      for (int64_t lane = 0; lane < kBlock; ++lane) {
        const int64_t before = distance(slot, lane);
        table[slot * kBlock + lane] = before >= window ? -std::numeric_limits<T>::infinity()
                                      : bias           ? bias[window - 1 - before]
                                                       : T{0};
      }
    }
  }

  // Softmax weights of the queries [begin, begin + kBlock) of a sequence over the keys of `rows`,
  // the first of which is reach tokens before: out [reach, kBlock].
  void weigh(int64_t begin, const T* rows, const T* transposed, T* out) const {
    simd::copy(table.data(), slots(), out);
    for (int64_t slot = 0; slot < reach - begin; ++slot) {
      std::fill_n(out + slot * kBlock, std::min(slot, kBlock), -std::numeric_limits<T>::infinity());
    }
    band_products<T>(reach, dp, scale, rows, dp, transposed, kTokens, Write::accumulate, out);
    for (int64_t lane = 0; lane < kBlock; lane += simd::kLanes<T>) softmax(out + lane);
  }

 private:
  // Logits of one vector of queries over rows; four independent chains of operations.
  void softmax(T* column) const {
    using simd::Vector;
    constexpr int64_t kChains = 4;
    Vector<T> largest[kChains], total[kChains];
    for (int64_t c = 0; c < kChains; ++c) {
      largest[c] = simd::load(column + c * kBlock);
      total[c] = Vector<T>{};
    }
    for (int64_t j = kChains; j < reach; j += kChains) {
      for (int64_t c = 0; c < kChains; ++c) {
        largest[c] = simd::maximum<T>(largest[c], simd::load(column + (j + c) * kBlock));
      }
    }
    const Vector<T> shift = simd::maximum<T>(simd::maximum<T>(largest[0], largest[1]),
                                             simd::maximum<T>(largest[2], largest[3]));
    for (int64_t j = 0; j < reach; j += kChains) {
      for (int64_t c = 0; c < kChains; ++c) {
        const Vector<T> weight = simd::exp<T>(simd::load(column + (j + c) * kBlock) - shift);
        total[c] += weight;
        simd::store(column + (j + c) * kBlock, weight);
      }
    }
    const Vector<T> inverse = T{1} / ((total[0] + total[1]) + (total[2] + total[3]));
    for (int64_t j = 0; j < reach; ++j) {
      simd::store(column + j * kBlock, inverse * simd::load(column + j * kBlock));
    }
  }
};

}  // namespace linnet::lavo_pass_detail
