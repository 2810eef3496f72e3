// HeadSplits of spans in causal slot attention: loading their tiles, and the memory with which each
// starts. Internal to this folder.
#pragma once

#include <algorithm>
#include <vector>

#include "attention/primitives/common/simd.h"
#include "attention/primitives/slot_attention/tile.h"

namespace linnet::slot_attention_detail {

// One head's split of a span.
struct HeadSplit {
  int64_t row, head, begin, end;
};

// Loads of the rows of a tile: [padded(n), padded width].
template <typename T>
void load_keys(const Kernel<T>& kernel, const HeadSplit& split, const Tile<T>& tile, T* keys,
               T* values) {
  const auto& in = kernel.inputs;
  chunked::load_rows(in.k, in.key_mask, split.row, tile.t, tile.n, split.head, keys, kernel.kp);
  chunked::load_rows(in.v, in.key_mask, split.row, tile.t, tile.n, split.head, values, kernel.vp);
}
template <typename T>
void load_queries(const Kernel<T>& kernel, const HeadSplit& split, const Tile<T>& tile,
                  T* queries) {
  chunked::load_rows(kernel.inputs.q, kernel.inputs.query_mask, split.row, tile.t, tile.n,
                     split.head, queries, kernel.kp);
}

// Rows of a tile [n, stride] to be read: where they lie if they are as wide and nothing is masked,
// else in `room`, with zeros. In place, the rows of the next tile are prefetched meanwhile.
template <typename T>
TileRows<const T> tile_rows(const SequenceView<const T>& view, const uint8_t* mask,
                            const HeadSplit& split, const Tile<T>& tile, T* room, int64_t stride) {
  if (mask == nullptr && view.K == stride) {
    return {view.at(split.row, tile.t, split.head), view.time_stride, kTileTokens};
  }
  chunked::load_rows(view, mask, split.row, tile.t, tile.n, split.head, room, stride);
  return {room, stride};
}

// Rows of a result, zero where masked; nothing if the view is null.
template <typename T>
void store_rows(SequenceView<T> view, const uint8_t* mask, const HeadSplit& split,
                const Tile<T>& tile, const T* rows, int64_t stride) {
  for (int64_t i = 0; view && i < tile.n; ++i) {
    T* row = view.at(split.row, tile.t + i, split.head);
    if (is_valid(mask, split.row, tile.t + i, view.T)) {
      simd::copy(rows + i * stride, view.K, row);
    } else {
      std::fill_n(row, view.K, T(0));
    }
  }
}

// Rows in scratch; while they are used, those of a view from token t on are prefetched (none where
// it is null). Prefetched all at once they would hold up other loads.
template <typename E, typename View>
TileRows<E> prefetching(TileRows<E> rows, const View& view, const HeadSplit& split, int64_t t) {
  if (!view) return rows;
  return {rows.data, rows.stride, 0, view.at(split.row, t, split.head), view.time_stride};
}

// Where the rows of a result [n, stride] are made: in the view, where tile_rows() would read them
// there, else in `room`, from which finish_rows() stores them.
template <typename T>
TileRows<T> result_rows(SequenceView<T> view, const uint8_t* mask, const HeadSplit& split,
                        const Tile<T>& tile, T* room, int64_t stride) {
  if (!view || mask != nullptr || view.K != stride) return {room, stride};
  return {view.at(split.row, tile.t, split.head), view.time_stride, kTileTokens};
}
template <typename T>
void finish_rows(SequenceView<T> view, const uint8_t* mask, const HeadSplit& split,
                 const Tile<T>& tile, TileRows<T> rows, const T* room) {
  if (rows.data == room) store_rows(view, mask, split, tile, room, rows.stride);
}

// Moves memory past a split without reading it.
template <typename T>
void write_only(const Kernel<T>& kernel, const HeadSplit& split, Memory<T>& memory,
                chunked::Scratch<T> scratch);

// The reads of a split, and the memory past it where that is wanted. Leaves the scratch's buffers.
template <typename T>
void forward_split(const Kernel<T>& kernel, const HeadSplit& split, bool memory_wanted,
                   Memory<T>& memory, chunked::Scratch<T> scratch, SequenceView<T> o,
                   SequenceView<T> read_logits);

// The tasks of one causal call: a (span_split, head) each.
template <typename T>
class HeadSplits {
 public:
  HeadSplits(const SlotAttentionOptions& options, const SlotAttentionInputs<T>& inputs,
             const std::vector<Span>& spans, SlotAttentionState<const T> state_in);

  const Kernel<T>& kernel() const { return kernel_; }
  int64_t count() const { return static_cast<int64_t>(span_splits_.size()) * kernel_.H; }
  // Whether spans are split, so that splits depend on others.
  bool is_split() const { return is_split_; }
  const chunked::Split& span_split(int64_t task) const { return span_splits_[task / kernel_.H]; }
  const Span& span(int64_t task) const { return spans_[span_split(task).span]; }
  HeadSplit split(int64_t task) const;
  bool is_last(int64_t task) const { return span_split(task).index + 1 == span_split(task).count; }
  // The task of the same head `distance` span_splits later.
  int64_t later(int64_t task, int64_t distance) const { return task + distance * kernel_.H; }
  template <typename Body>
  void run(const Body& body) const {
    chunked::run_tasks(count(), kernel_.work(spans_), body);
  }
  // The memory before the span's first token, and before the task's.
  void load_carried(int64_t task, T* transposed, Memory<T>& memory) const;
  void load_start(int64_t task, T* transposed, Memory<T>& memory) const;

 private:
  Kernel<T> kernel_;
  const std::vector<Span>& spans_;
  SlotAttentionState<const T> state_in_;
  std::vector<chunked::Split> span_splits_;
  bool is_split_ = false;
  // The memory that each split but the last of a span writes on its own.
  std::vector<T> matrices_;
  std::vector<Memory<T>> written_;
};

}  // namespace linnet::slot_attention_detail
