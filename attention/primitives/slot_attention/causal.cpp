// Causal slot attention, forward. The memory, relative to the tile's reference, is scanned along
// the tokens: weights E add to it, read factors F make means of it.
#include <algorithm>

#include "attention/primitives/slot_attention/head_splits.h"
#include "core/error.h"
#include "core/threads.h"

namespace linnet {

using chunked::Scratch;

namespace slot_attention_detail {

// Moves memory past a split without reading it.
template <typename T>
void write_only(const Kernel<T>& kernel, const HeadSplit& split, Memory<T>& memory,
                Scratch<T> scratch) {
  T* keys = scratch.take(kTileTokens * kernel.kp);
  T* values = scratch.take(kTileTokens * kernel.vp);
  const TileWeights<T> weights = kernel.take_weights(scratch);
  T* factors = scratch.take(kTileTokens * kernel.np);
  RunningNormalizer normalizer = kernel.begin_normalizer(memory.mass);
  Tile<T> tile;
  for (int64_t t = split.begin; t < split.end; t += tile.n) {
    kernel.next_tile(split.row, split.head, t, split.end, normalizer, tile);
    load_keys(kernel, split, tile, keys, values);
    kernel.load_weights(split.row, split.head, tile, weights);
    kernel.read_factors(tile, weights.keys, normalizer, factors);
    kernel.scale_columns(memory.matrix, tile.entry);
    kernel.accumulate(tile.n, keys, values, weights, memory.matrix);
  }
  kernel.end_scan(normalizer, memory);
}

template <typename T>
HeadSplits<T>::HeadSplits(const SlotAttentionOptions& options, const SlotAttentionInputs<T>& inputs,
                          const std::vector<Span>& spans, SlotAttentionState<const T> state_in)
    : kernel_(options, inputs, inputs.k.H, inputs.logits.K, inputs.k.K, inputs.v.K),
      spans_(spans),
      state_in_(state_in),
      span_splits_(chunked::split_spans(spans, kernel_.H, thread_count())) {
  require(!inputs.q || (inputs.q.T == inputs.k.T && inputs.q.B == inputs.k.B),
          "slot_attention: causal queries [", inputs.q.B, ",", inputs.q.T, "] and keys [",
          inputs.k.B, ",", inputs.k.T, "] must be of the same tokens");
  is_split_ = span_splits_.size() > spans.size();
  if (!is_split_) return;
  matrices_.resize(static_cast<size_t>(count() * kernel_.matrix_size()));
  written_.resize(static_cast<size_t>(count()));
  run([&](int64_t task) {
    if (is_last(task)) return;
    Memory<T>& memory = written_[task];
    memory.matrix = matrices_.data() + task * kernel_.matrix_size();
    memory.mass.assign(static_cast<size_t>(kernel_.np), kernel_.empty_normalizer());
    write_only(kernel_, split(task), memory, Scratch<T>());
  });
}

template <typename T>
HeadSplit HeadSplits<T>::split(int64_t task) const {
  return {span(task).row, task % kernel_.H, span_split(task).begin, span_split(task).end};
}

template <typename T>
void HeadSplits<T>::load_carried(int64_t task, T* transposed, Memory<T>& memory) const {
  const Span& of = span(task);
  kernel_.load_memory(of.carries_in ? state_in_ : SlotAttentionState<const T>{}, of.row,
                      task % kernel_.H, transposed, memory);
}

template <typename T>
void HeadSplits<T>::load_start(int64_t task, T* transposed, Memory<T>& memory) const {
  load_carried(task, transposed, memory);
  for (int64_t back = span_split(task).index; back > 0; --back) {
    append_memory(kernel_, written_[later(task, -back)], memory);
  }
}

template class HeadSplits<float>;
template class HeadSplits<double>;

template <typename T>
void forward_split(const Kernel<T>& kernel, const HeadSplit& split, bool memory_wanted,
                   Memory<T>& memory, Scratch<T> scratch, SequenceView<T> o,
                   SequenceView<T> read_logits) {
  const int64_t np = kernel.np, kp = kernel.kp, vp = kernel.vp;
  const auto& in = kernel.inputs;
  T* keys_room = scratch.take(kTileTokens * kp);
  T* values_room = scratch.take(kTileTokens * vp);
  T* queries_room = scratch.take(kTileTokens * kp);
  const TileWeights<T> weights = kernel.take_weights(scratch);
  T* factors = scratch.take(kTileTokens * np);
  T* products = scratch.take(kTileTokens * np);
  T* reads = scratch.take(kTileTokens * np);
  T* kept_rows = scratch.take(kTileTokens * np);
  T* memory_values = scratch.take(np * vp);
  T* outputs_room = scratch.take(kTileTokens * vp);
  chunked::transpose(memory.matrix + kp * np, np, vp, np, memory_values, vp);
  RunningNormalizer normalizer = kernel.begin_normalizer(memory.mass);
  Tile<T> tile;
  for (int64_t t = split.begin; t < split.end; t += tile.n) {
    kernel.next_tile(split.row, split.head, t, split.end, normalizer, tile);
    const int64_t n = tile.n;
    const TileRows<const T> keys = tile_rows(in.k, in.key_mask, split, tile, keys_room, kp);
    const TileRows<const T> values = tile_rows(in.v, in.key_mask, split, tile, values_room, vp);
    const TileRows<const T> queries = tile_rows(in.q, in.query_mask, split, tile, queries_room, kp);
    kernel.load_weights(split.row, split.head, tile, weights);
    kernel.read_factors(tile, weights.keys, normalizer, factors);
    kernel.scale_columns(memory.matrix, tile.entry);
    kernel.scale_rows(memory_values, vp, tile.entry);
    state_scan<T>(ScanOrder::forward, n, kp, np, keys,
                  prefetching<const T>({weights.keys, np}, in.logits, split, t + n), queries,
                  memory.matrix, Write::overwrite,
                  prefetching<T>({products, np}, read_logits, split, t));
    kernel.products_to_logits(n, {factors, np}, products);
    if (read_logits) store_rows(read_logits, nullptr, split, tile, products, np);
    kernel.read_rows(n, {factors, np}, kernel.kept_rows(split.row, t, n, split.head, kept_rows),
                     products, reads);
    const TileRows<T> outputs = result_rows(o, in.query_mask, split, tile, outputs_room, vp);
    state_scan<T>(ScanOrder::forward, n, np, vp,
                  prefetching<const T>({weights.values, np}, in.value_logits, split, t + n), values,
                  {reads, np}, memory_values, Write::overwrite, outputs);
    finish_rows(o, in.query_mask, split, tile, outputs, outputs_room);
  }
  if (!memory_wanted) return;
  chunked::transpose(memory_values, vp, np, vp, memory.matrix + kp * np, np);
  kernel.end_scan(normalizer, memory);
}

template void forward_split(const Kernel<float>&, const HeadSplit&, bool, Memory<float>&,
                            Scratch<float>, SequenceView<float>, SequenceView<float>);
template void forward_split(const Kernel<double>&, const HeadSplit&, bool, Memory<double>&,
                            Scratch<double>, SequenceView<double>, SequenceView<double>);

}  // namespace slot_attention_detail

using slot_attention_detail::forward_split;
using slot_attention_detail::HeadSplit;
using slot_attention_detail::HeadSplits;
using slot_attention_detail::Kernel;
using slot_attention_detail::Memory;

template <typename T>
void slot_attention_causal_forward(const SlotAttentionOptions& options,
                                   const SlotAttentionInputs<T>& inputs,
                                   const std::vector<Span>& spans,
                                   SlotAttentionState<const T> state_in,
                                   SlotAttentionState<T> state_out, SequenceView<T> o,
                                   SequenceView<T> read_logits) {
  const HeadSplits<T> splits(options, inputs, spans, state_in);
  const Kernel<T>& kernel = splits.kernel();
  const bool any_state =
      state_out.keys != nullptr || state_out.values != nullptr || state_out.mass != nullptr;
  splits.run([&](int64_t task) {
    Scratch<T> scratch;
    Memory<T> memory;
    memory.matrix = scratch.take(kernel.matrix_size());
    T* transposed = scratch.take(kernel.transposed_size());
    splits.load_start(task, transposed, memory);
    const bool wanted = any_state && splits.is_last(task) && splits.span(task).carries_out;
    const HeadSplit split = splits.split(task);
    forward_split(kernel, split, wanted, memory, scratch.nested(), o, read_logits);
    if (wanted) kernel.store_memory(memory, state_out, split.row, split.head, transposed);
  });
}

#define LINNET_INSTANTIATE(T)                                                               \
  template void slot_attention_causal_forward<T>(                                           \
      const SlotAttentionOptions&, const SlotAttentionInputs<T>&, const std::vector<Span>&, \
      SlotAttentionState<const T>, SlotAttentionState<T>, SequenceView<T>, SequenceView<T>);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet
