// Causal slot attention, backward: a forward scan for dq, which keeps per token the values that
// readers pass on (3 N values), and a reverse scan with the gradient of the memory for dk, dv and
// the logits.
#include <algorithm>
#include <cmath>

#include "attention/primitives/slot_attention/head_splits.h"
#include "core/error.h"

namespace linnet {
namespace {

using chunked::Scratch;
using slot_attention_detail::finish_rows;
using slot_attention_detail::HeadSplit;
using slot_attention_detail::HeadSplits;
using slot_attention_detail::Kernel;
using slot_attention_detail::kTileTokens;
using slot_attention_detail::load_end_gradient;
using slot_attention_detail::load_queries;
using slot_attention_detail::Memory;
using slot_attention_detail::MemoryGradient;
using slot_attention_detail::prefetching;
using slot_attention_detail::result_rows;
using slot_attention_detail::RunningNormalizer;
using slot_attention_detail::Tile;
using slot_attention_detail::tile_rows;
using slot_attention_detail::TileWeights;

// Kept by the forward scan of backward for the reverse scan: the tiles, by the factor of their sums
// means after the last one; per token and slot scale F dlogit, F probability, and the gradient of
// the sum of weights behind F.
template <typename T>
struct Saved {
  std::vector<Tile<T>> tiles;
  std::vector<T> end_factors;
  T *to_keys = nullptr, *to_values = nullptr, *to_sums = nullptr;  // [tokens, np] each
};

// Elements of Saved for every token.
template <typename T>
int64_t saved_width(const Kernel<T>& kernel) {
  return 3 * kernel.np;
}

// dq of a split; moves memory past it. read_logits: as forward left them.
template <typename T>
void query_gradients(const Kernel<T>& kernel, const HeadSplit& split, SequenceView<const T> d_o,
                     SequenceView<const T> read_logits, Memory<T>& memory, Scratch<T> scratch,
                     SequenceView<T> dq, Saved<T>& saved) {
  const int64_t np = kernel.np, kp = kernel.kp, vp = kernel.vp;
  const auto& in = kernel.inputs;
  T* keys_room = scratch.take(kTileTokens * kp);
  T* values_room = scratch.take(kTileTokens * vp);
  T* doutputs_room = scratch.take(kTileTokens * vp);
  const TileWeights<T> weights = kernel.take_weights(scratch);
  T* factors = scratch.take(kTileTokens * np);
  T* logits = scratch.take(kTileTokens * np);
  T* dreads = scratch.take(kTileTokens * np);
  T* kept_rows = scratch.take(kTileTokens * np);
  T* memory_keys = scratch.take(np * kp);
  T* dqueries_room = scratch.take(kTileTokens * kp);
  chunked::transpose(memory.matrix, np, kp, np, memory_keys, kp);
  RunningNormalizer normalizer = kernel.begin_normalizer(memory.mass);
  Tile<T> tile;
  for (int64_t t = split.begin; t < split.end; t += tile.n) {
    kernel.next_tile(split.row, split.head, t, split.end, normalizer, tile);
    const int64_t n = tile.n, offset = (t - split.begin) * np;
    const TileRows<const T> keys = tile_rows(in.k, in.key_mask, split, tile, keys_room, kp);
    const TileRows<const T> values = tile_rows(in.v, in.key_mask, split, tile, values_room, vp);
    const TileRows<const T> doutputs =
        tile_rows(d_o, in.query_mask, split, tile, doutputs_room, vp);
    chunked::load_rows(read_logits, in.query_mask, split.row, t, n, split.head, logits, np);
    kernel.load_weights(split.row, split.head, tile, weights);
    kernel.read_factors(tile, weights.keys, normalizer, factors);
    kernel.scale_columns(memory.matrix, tile.entry);
    kernel.scale_rows(memory_keys, kp, tile.entry);
    state_scan<T>(ScanOrder::forward, n, vp, np, values,
                  prefetching<const T>({weights.values, np}, in.logits, split, t + n), doutputs,
                  memory.matrix + kp * np, Write::overwrite, {dreads, np});
    // Masked queries pass zeros on: do is zero.
    kernel.read_gradient_rows(
        n, {factors, np}, kernel.kept_rows(split.row, t, n, split.head, kept_rows), logits, dreads,
        saved.to_keys + offset, saved.to_values + offset, saved.to_sums + offset);
    const TileRows<T> dqueries = result_rows(dq, in.query_mask, split, tile, dqueries_room, kp);
    state_scan<T>(ScanOrder::forward, n, np, kp,
                  prefetching<const T>({weights.keys, np}, read_logits, split, t + n), keys,
                  prefetching<const T>({saved.to_keys + offset, np}, in.value_logits, split, t + n),
                  memory_keys, Write::overwrite, dqueries);
    finish_rows(dq, in.query_mask, split, tile, dqueries, dqueries_room);
    saved.tiles.push_back(tile);
  }
  chunked::transpose(memory_keys, kp, np, kp, memory.matrix, np);
  saved.end_factors = kernel.end_factors(normalizer);
  kernel.end_scan(normalizer, memory);
}

template <typename T>
void scale_sums(std::vector<double>& sums, const std::vector<T>& factors) {
  for (size_t l = 0; l < factors.size(); ++l) sums[l] *= static_cast<double>(factors[l]);
}

// Takes the gradient of the sums of weights from after a tile to before it; `inside` gets its part
// in the gradient of the weights of every token and slot, a vector at place i np + l.
template <typename T, typename Inside>
void pass_sums(const Kernel<T>& kernel, const Tile<T>& tile, const T* to_sums,
               std::vector<double>& sums, const Inside& inside) {
  const int64_t np = kernel.np;
  for (int64_t first = 0; first < np; first += simd::kLanes<T>) {
    T lanes[simd::kLanes<T>];
    for (int64_t l = 0; l < simd::kLanes<T>; ++l) lanes[l] = static_cast<T>(sums[first + l]);
    const simd::Vector<T> after = simd::load(lanes);
    simd::Vector<T> own = {};
    for (int64_t i = tile.n - 1; i >= 0; --i) {
      own += simd::load(to_sums + i * np + first);
      inside(i * np + first, after + own);
    }
    simd::store(lanes, own);
    for (int64_t l = 0; l < simd::kLanes<T>; ++l) sums[first + l] += static_cast<double>(lanes[l]);
  }
  scale_sums(sums, tile.entry);
}

// Takes a gradient from after a split to before it, only for the memory.
template <typename T>
void memory_gradients(const Kernel<T>& kernel, const HeadSplit& split, SequenceView<const T> d_o,
                      const Saved<T>& saved, MemoryGradient<T>& gradient, Scratch<T> scratch) {
  const int64_t np = kernel.np;
  T* queries = scratch.take(kTileTokens * kernel.kp);
  T* doutputs = scratch.take(kTileTokens * kernel.vp);
  kernel.scale_columns(gradient.matrix, saved.end_factors);
  scale_sums(gradient.sums, saved.end_factors);
  for (size_t number = saved.tiles.size(); number-- > 0;) {
    const Tile<T>& tile = saved.tiles[number];
    const int64_t offset = (tile.t - split.begin) * np;
    load_queries(kernel, split, tile, queries);
    chunked::load_rows(d_o, kernel.inputs.query_mask, split.row, tile.t, tile.n, split.head,
                       doutputs, kernel.vp);
    kernel.accumulate(tile.n, queries, doutputs, {saved.to_keys + offset, saved.to_values + offset},
                      gradient.matrix);
    kernel.scale_columns(gradient.matrix, tile.entry);
    pass_sums(kernel, tile, saved.to_sums + offset, gradient.sums, [](int64_t, auto) {});
  }
}

// dk, dv and dlogits of a split; takes the memory's gradient from after the split to before it.
template <typename T>
void key_gradients(const Kernel<T>& kernel, const HeadSplit& split, SequenceView<const T> d_o,
                   const Saved<T>& saved, MemoryGradient<T>& gradient, Scratch<T> scratch,
                   const SlotAttentionGradients<T>& out) {
  const int64_t np = kernel.np, kp = kernel.kp, vp = kernel.vp;
  T* keys_room = scratch.take(kTileTokens * kp);
  T* values_room = scratch.take(kTileTokens * vp);
  T* queries_room = scratch.take(kTileTokens * kp);
  T* doutputs_room = scratch.take(kTileTokens * vp);
  const TileWeights<T> weights = kernel.take_weights(scratch);
  const TileWeights<T> dweights = kernel.take_weights(scratch);
  T* drows_room = scratch.take(kTileTokens * std::max(kp, vp));
  kernel.scale_columns(gradient.matrix, saved.end_factors);
  scale_sums(gradient.sums, saved.end_factors);
  // The gradient once more, its rows slots.
  T* keys_gradient = scratch.take(np * kp);
  T* values_gradient = scratch.take(np * vp);
  chunked::transpose(gradient.matrix, np, kp, np, keys_gradient, kp);
  chunked::transpose(gradient.matrix + kp * np, np, vp, np, values_gradient, vp);
  const auto& in = kernel.inputs;
  const bool apart = weights.values != weights.keys;
  for (size_t number = saved.tiles.size(); number-- > 0;) {
    const Tile<T>& tile = saved.tiles[number];
    const int64_t n = tile.n, offset = (tile.t - split.begin) * np;
    kernel.load_weights(split.row, split.head, tile, weights);
    // One of keys and values: rows of the tile, those of its readers, the values that these pass
    // on, the weights they are written with and the memory's gradient, its rows channels and slots.
    const auto part = [&](TileRows<const T> own, TileRows<const T> readers, int64_t width,
                          const T* passed, TileRows<const T> written, T* channels, T* slots,
                          Write write, TileRows<T> dwritten, SequenceView<T> view) {
      const TileRows<const T> passed_rows{passed, np, kTileTokens};
      if (view) {
        const TileRows<T> drows = result_rows(view, in.key_mask, split, tile, drows_room, width);
        state_scan<T>(ScanOrder::backward, n, np, width, passed_rows, readers, written, slots,
                      Write::overwrite, drows);
        finish_rows(view, in.key_mask, split, tile, drows, drows_room);
        kernel.scale_rows(slots, width, tile.entry);
      }
      state_scan<T>(ScanOrder::backward, n, width, np, readers, passed_rows, own, channels, write,
                    dwritten);
    };
    const int64_t before = tile.t - kTileTokens;
    part(tile_rows(in.k, in.key_mask, split, tile, keys_room, kp),
         tile_rows(in.q, in.query_mask, split, tile, queries_room, kp), kp, saved.to_keys + offset,
         prefetching<const T>({weights.keys, np}, in.logits, split, before), gradient.matrix,
         keys_gradient, Write::overwrite,
         prefetching<T>({dweights.keys, np}, out.logits, split, tile.t), out.k);
    const TileRows<const T> with_sums{weights.values, np, 0, saved.to_sums + offset, np};
    part(tile_rows(in.v, in.key_mask, split, tile, values_room, vp),
         tile_rows(d_o, in.query_mask, split, tile, doutputs_room, vp), vp,
         saved.to_values + offset, prefetching(with_sums, in.value_logits, split, before),
         gradient.matrix + kp * np, values_gradient, apart ? Write::overwrite : Write::accumulate,
         prefetching<T>({dweights.values, np}, out.value_logits, split, tile.t), out.v);
    pass_sums(kernel, tile, saved.to_sums + offset, gradient.sums,
              [&](int64_t place, simd::Vector<T> later) {
                T* at = dweights.keys + place;
                simd::store(at, simd::load(at) + later);
              });
    kernel.scale_columns(gradient.matrix, tile.entry);
    const auto store = [&](const T* alpha, const T* dalpha, SequenceView<T> view) {
      if (view) kernel.store_logit_gradients(split.row, split.head, tile, alpha, dalpha, view);
    };
    store(weights.keys, dweights.keys, out.logits);
    if (apart) store(weights.values, dweights.values, out.value_logits);
  }
}

// The gradient of the state before the first token of a span; `carried` is that state.
template <typename T>
void store_start_gradient(const Kernel<T>& kernel, const MemoryGradient<T>& gradient,
                          const Memory<T>& carried, SlotAttentionState<T> dstate, int64_t row,
                          int64_t head, T* transposed) {
  Memory<T> out;
  out.matrix = gradient.matrix;
  out.mass = gradient.sums;
  if (kernel.log_space) {
    const std::vector<double> means = slot_products(kernel, carried.matrix, gradient.matrix);
    for (int64_t l = 0; l < kernel.np; ++l) out.mass[l] += means[l];
  }
  kernel.store_memory(out, dstate, row, head, transposed);
}

// Results of a task of a split span for the others of the span.
template <typename T>
struct Scanned {
  std::vector<T> storage;  // behind `saved` and the matrices
  Saved<T> saved;
  // The gradient that its own readers pass to the memory before it; the gradient after the span
  // (last split).
  MemoryGradient<T> own, end;
  // By how much a gradient shrinks from after the split to before it.
  std::vector<T> passing;
};

template <typename T>
void assign_saved(const Kernel<T>& kernel, const HeadSplit& split, T* storage, Saved<T>& saved) {
  const int64_t tokens = split.end - split.begin;
  for (T** rows : {&saved.to_keys, &saved.to_values, &saved.to_sums}) {
    *rows = storage;
    storage += tokens * kernel.np;
  }
}

template <typename T>
void scan_task(const HeadSplits<T>& splits, int64_t task, SequenceView<const T> d_o,
               SequenceView<const T> read_logits, SlotAttentionState<const T> dstate_out,
               SequenceView<T> dq, Scanned<T>& scanned) {
  const Kernel<T>& kernel = splits.kernel();
  const HeadSplit split = splits.split(task);
  const int64_t size = (split.end - split.begin) * saved_width(kernel);
  const int64_t matrix = kernel.matrix_size();
  scanned.storage.assign(static_cast<size_t>(size + 2 * matrix), T(0));
  assign_saved(kernel, split, scanned.storage.data(), scanned.saved);
  scanned.own.matrix = scanned.storage.data() + size;
  scanned.end.matrix = scanned.own.matrix + matrix;
  Scratch<T> scratch;
  Memory<T> memory;
  memory.matrix = scratch.take(matrix);
  T* transposed = scratch.take(kernel.transposed_size());
  splits.load_start(task, transposed, memory);
  const std::vector<double> before = memory.mass;
  query_gradients(kernel, split, d_o, read_logits, memory, scratch.nested(), dq, scanned.saved);
  scanned.passing.assign(static_cast<size_t>(kernel.np), T(1));
  for (int64_t l = 0; kernel.log_space && l < kernel.np; ++l) {
    const bool empty = std::isinf(before[l]) && before[l] < 0;
    scanned.passing[l] = empty ? T(0) : static_cast<T>(std::exp(before[l] - memory.mass[l]));
  }
  scanned.own.sums.assign(static_cast<size_t>(kernel.np), 0);
  memory_gradients(kernel, split, d_o, scanned.saved, scanned.own, scratch.nested());
  if (!splits.is_last(task)) return;
  load_end_gradient(kernel,
                    splits.span(task).carries_out ? dstate_out : SlotAttentionState<const T>{},
                    split.row, split.head, memory, transposed, scanned.end);
}

// The gradient after a split, from those of the splits behind it.
template <typename T>
void load_gradient_after(const HeadSplits<T>& splits, int64_t task,
                         const std::vector<Scanned<T>>& scanned, MemoryGradient<T>& out) {
  const Kernel<T>& kernel = splits.kernel();
  const chunked::Split& span_split = splits.span_split(task);
  int64_t other = splits.later(task, span_split.count - 1 - span_split.index);
  std::copy_n(scanned[other].end.matrix, kernel.matrix_size(), out.matrix);
  out.sums = scanned[other].end.sums;
  for (; other != task; other = splits.later(other, -1)) {
    const Scanned<T>& split = scanned[other];
    kernel.scale_columns(out.matrix, split.passing);
    for (int64_t i = 0; i < kernel.matrix_size(); ++i) out.matrix[i] += split.own.matrix[i];
    for (int64_t l = 0; l < kernel.np; ++l) {
      out.sums[l] = split.passing[l] * out.sums[l] + split.own.sums[l];
    }
  }
}

}  // namespace

template <typename T>
void slot_attention_causal_backward(
    const SlotAttentionOptions& options, const SlotAttentionInputs<T>& inputs,
    const std::vector<Span>& spans, SlotAttentionState<const T> state_in, SequenceView<const T> d_o,
    SequenceView<const T> read_logits, SlotAttentionState<const T> dstate_out,
    SlotAttentionGradients<T> gradients, SlotAttentionState<T> dstate_in) {
  const HeadSplits<T> splits(options, inputs, spans, state_in);
  const Kernel<T>& kernel = splits.kernel();
  const auto finish = [&](int64_t task, const Saved<T>& saved, MemoryGradient<T>& gradient,
                          Memory<T>& memory, T* transposed, Scratch<T> scratch) {
    const HeadSplit split = splits.split(task);
    key_gradients(kernel, split, d_o, saved, gradient, scratch, gradients);
    if (splits.span_split(task).index > 0 || !splits.span(task).carries_in) return;
    splits.load_carried(task, transposed, memory);
    store_start_gradient(kernel, gradient, memory, dstate_in, split.row, split.head, transposed);
  };
  std::vector<Scanned<T>> scanned(splits.is_split() ? static_cast<size_t>(splits.count()) : 0);
  if (splits.is_split()) {
    splits.run([&](int64_t task) {
      scan_task(splits, task, d_o, read_logits, dstate_out, gradients.q, scanned[task]);
    });
  }
  splits.run([&](int64_t task) {
    const HeadSplit split = splits.split(task);
    Scratch<T> scratch;
    Memory<T> memory;
    MemoryGradient<T> gradient;
    memory.matrix = scratch.take(kernel.matrix_size());
    gradient.matrix = scratch.take(kernel.matrix_size());
    T* transposed = scratch.take(kernel.transposed_size());
    if (splits.is_split()) {
      load_gradient_after(splits, task, scanned, gradient);
      finish(task, scanned[task].saved, gradient, memory, transposed, scratch.nested());
      return;
    }
    Saved<T> saved;
    assign_saved(kernel, split, scratch.take((split.end - split.begin) * saved_width(kernel)),
                 saved);
    splits.load_start(task, transposed, memory);
    query_gradients(kernel, split, d_o, read_logits, memory, scratch.nested(), gradients.q, saved);
    load_end_gradient(kernel,
                      splits.span(task).carries_out ? dstate_out : SlotAttentionState<const T>{},
                      split.row, split.head, memory, transposed, gradient);
    finish(task, saved, gradient, memory, transposed, scratch.nested());
  });
}

#define LINNET_INSTANTIATE(T)                                                               \
  template void slot_attention_causal_backward<T>(                                          \
      const SlotAttentionOptions&, const SlotAttentionInputs<T>&, const std::vector<Span>&, \
      SlotAttentionState<const T>, SequenceView<const T>, SequenceView<const T>,            \
      SlotAttentionState<const T>, SlotAttentionGradients<T>, SlotAttentionState<T>);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet
