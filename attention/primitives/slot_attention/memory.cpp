// Noncausal and cross slot attention: a memory written once by all keys, and its read-out.
#include <algorithm>
#include <cmath>

#include "attention/primitives/slot_attention/head_splits.h"
#include "core/threads.h"

namespace linnet {
namespace {

using chunked::kChunk;
using chunked::Scratch;
using slot_attention_detail::HeadSplit;
using slot_attention_detail::HeadSplits;
using slot_attention_detail::Kernel;
using slot_attention_detail::load_end_gradient;
using slot_attention_detail::load_keys;
using slot_attention_detail::load_queries;
using slot_attention_detail::Memory;
using slot_attention_detail::MemoryGradient;
using slot_attention_detail::store_rows;
using slot_attention_detail::Tile;
using slot_attention_detail::TileWeights;
using slot_attention_detail::write_only;

// Read factors of a finished memory, the same for every query.
template <typename T>
std::vector<T> finished_factors(const Kernel<T>& kernel, const std::vector<double>& mass) {
  std::vector<T> out(static_cast<size_t>(kernel.np));
  for (int64_t l = 0; l < kernel.np; ++l) {
    // In log space the memory holds means already.
    out[l] = kernel.log_space ? T(mass[l] == kernel.empty_normalizer() ? 0 : 1)
                              : kernel.read_factor(static_cast<T>(mass[l]));
  }
  return out;
}

// The splits of the query spans, and a task for each of them and each head.
template <typename T>
struct Reads {
  Reads(const Kernel<T>& kernel_in, const std::vector<Span>& spans_in)
      : kernel(kernel_in),
        spans(spans_in),
        span_splits(chunked::split_spans(spans, kernel.H, thread_count())) {}

  const Kernel<T>& kernel;
  const std::vector<Span>& spans;
  std::vector<chunked::Split> span_splits;

  int64_t count() const { return static_cast<int64_t>(span_splits.size()) * kernel.H; }
  bool is_split() const { return span_splits.size() > spans.size(); }
  const chunked::Split& span_split(int64_t task) const { return span_splits[task / kernel.H]; }
  HeadSplit split(int64_t task) const {
    const chunked::Split& of = span_split(task);
    return {spans[of.span].row, task % kernel.H, of.begin, of.end};
  }
  template <typename Body>
  void run(const Body& body) const {
    chunked::run_tasks(count(), kernel.work(spans), body);
  }
};

}  // namespace

template <typename T>
void slot_attention_memory_forward(const SlotAttentionOptions& options,
                                   const SlotAttentionInputs<T>& inputs,
                                   const std::vector<Span>& key_spans,
                                   SlotAttentionState<T> memory_out) {
  const HeadSplits<T> splits(options, inputs, key_spans, {});
  const Kernel<T>& kernel = splits.kernel();
  splits.run([&](int64_t task) {
    if (!splits.is_last(task)) return;
    Scratch<T> scratch;
    Memory<T> memory;
    memory.matrix = scratch.take(kernel.matrix_size());
    T* transposed = scratch.take(kernel.transposed_size());
    splits.load_start(task, transposed, memory);
    const HeadSplit split = splits.split(task);
    write_only(kernel, split, memory, scratch.nested());
    kernel.store_memory(memory, memory_out, splits.span_split(task).span, split.head, transposed);
  });
}

template <typename T>
void slot_attention_memory_backward(const SlotAttentionOptions& options,
                                    const SlotAttentionInputs<T>& inputs,
                                    const std::vector<Span>& key_spans,
                                    SlotAttentionState<const T> memory_in,
                                    SlotAttentionState<const T> dmemory,
                                    SlotAttentionGradients<T> gradients) {
  const Kernel<T> kernel(options, inputs, inputs.k.H, inputs.logits.K, inputs.k.K, inputs.v.K);
  const std::vector<chunked::Split> span_splits =
      chunked::split_spans(key_spans, kernel.H, thread_count());
  const int64_t np = kernel.np, kp = kernel.kp, vp = kernel.vp;
  chunked::run_tasks(
      static_cast<int64_t>(span_splits.size()) * kernel.H, kernel.work(key_spans),
      [&](int64_t task) {
        const chunked::Split& span_split = span_splits[task / kernel.H];
        const HeadSplit split{key_spans[span_split.span].row, task % kernel.H, span_split.begin,
                              span_split.end};
        Scratch<T> scratch;
        Memory<T> memory;
        MemoryGradient<T> gradient;
        memory.matrix = scratch.take(kernel.matrix_size());
        gradient.matrix = scratch.take(kernel.matrix_size());
        T* transposed = scratch.take(kernel.transposed_size());
        T* key_gradient = scratch.take(np * kp);
        T* value_gradient = scratch.take(np * vp);
        T* keys = scratch.take(kChunk * kp);
        T* values = scratch.take(kChunk * vp);
        const TileWeights<T> weights = kernel.take_weights(scratch);
        T* dweights = scratch.take(kChunk * np);
        T* dkeys = scratch.take(kChunk * kp);
        T* dvalues = scratch.take(kChunk * vp);
        kernel.load_memory(memory_in, span_split.span, split.head, transposed, memory);
        load_end_gradient(kernel, dmemory, span_split.span, split.head, memory, transposed,
                          gradient);
        // Weights relative to the final normalizer; rounding errors of that are put back.
        Tile<T> tile;
        tile.reference.assign(static_cast<size_t>(np), T(0));
        std::vector<T> correction(static_cast<size_t>(np), T(1));
        for (int64_t l = 0; kernel.log_space && l < np; ++l) {
          if (memory.mass[l] == kernel.empty_normalizer()) continue;
          tile.reference[l] = static_cast<T>(memory.mass[l]);
          correction[l] =
              static_cast<T>(std::exp(static_cast<double>(tile.reference[l]) - memory.mass[l]));
        }
        kernel.scale_columns(gradient.matrix, correction);
        std::vector<T> dsums(static_cast<size_t>(np));
        for (int64_t l = 0; l < np; ++l) {
          dsums[l] = static_cast<T>(gradient.sums[l] * correction[l]);
        }
        chunked::transpose(gradient.matrix, np, kp, np, key_gradient, kp);
        chunked::transpose(gradient.matrix + kp * np, np, vp, np, value_gradient, vp);
        for (tile.t = span_split.begin; tile.t < span_split.end; tile.t += tile.n) {
          tile.n = std::min(kChunk, span_split.end - tile.t);
          load_keys(kernel, split, tile, keys, values);
          kernel.load_weights(split.row, split.head, tile, weights);
          tile_gemm<T>(tile.n, kp, kernel.N, T(1), {weights.keys, np}, {key_gradient, kp},
                       Write::overwrite, dkeys, kp);
          tile_gemm<T>(tile.n, vp, kernel.N, T(1), {weights.keys, np}, {value_gradient, vp},
                       Write::overwrite, dvalues, vp);
          store_rows(gradients.k, inputs.key_mask, split, tile, dkeys, kp);
          store_rows(gradients.v, inputs.key_mask, split, tile, dvalues, vp);
          if (!gradients.logits) continue;
          tile_gemm<T>(tile.n, np, kernel.K, T(1), {keys, kp}, {gradient.matrix, np},
                       Write::overwrite, dweights, np);
          tile_gemm<T>(tile.n, np, kernel.V, T(1), {values, vp}, {gradient.matrix + kp * np, np},
                       Write::accumulate, dweights, np);
          for (int64_t i = 0; i < tile.n; ++i) {
            axpy_row(np, T(1), dsums.data(), dweights + i * np);
          }
          kernel.store_logit_gradients(split.row, split.head, tile, weights.keys, dweights,
                                       gradients.logits);
        }
      });
}

template <typename T>
void slot_attention_read_forward(const SlotAttentionOptions& options,
                                 const SlotAttentionInputs<T>& inputs,
                                 const std::vector<Span>& query_spans, int64_t slots,
                                 SlotAttentionState<const T> memory_in, SequenceView<T> o) {
  const Kernel<T> kernel(options, inputs, inputs.q.H, slots, inputs.q.K, o.K);
  const int64_t np = kernel.np, kp = kernel.kp, vp = kernel.vp;
  const Reads<T> reads_of(kernel, query_spans);
  reads_of.run([&](int64_t task) {
    const HeadSplit split = reads_of.split(task);
    Scratch<T> scratch;
    Memory<T> memory;
    memory.matrix = scratch.take(kernel.matrix_size());
    T* transposed = scratch.take(kernel.transposed_size());
    T* memory_values = scratch.take(np * vp);
    T* queries = scratch.take(kChunk * kp);
    T* products = scratch.take(kChunk * np);
    T* reads = scratch.take(kChunk * np);
    T* kept_rows = scratch.take(kChunk * np);
    T* outputs = scratch.take(kChunk * vp);
    kernel.load_memory(memory_in, reads_of.span_split(task).span, split.head, transposed, memory);
    chunked::transpose(memory.matrix + kp * np, np, vp, np, memory_values, vp);
    const std::vector<T> factors = finished_factors(kernel, memory.mass);
    Tile<T> tile;
    for (tile.t = split.begin; tile.t < split.end; tile.t += tile.n) {
      tile.n = std::min(kChunk, split.end - tile.t);
      load_queries(kernel, split, tile, queries);
      tile_gemm<T>(tile.n, np, kernel.K, T(1), {queries, kp}, {memory.matrix, np}, Write::overwrite,
                   products, np);
      kernel.products_to_logits(tile.n, {factors.data(), 0}, products);
      kernel.read_rows(tile.n, {factors.data(), 0},
                       kernel.kept_rows(split.row, tile.t, tile.n, split.head, kept_rows), products,
                       reads);
      tile_gemm<T>(tile.n, vp, kernel.N, T(1), {reads, np}, {memory_values, vp}, Write::overwrite,
                   outputs, vp);
      store_rows(o, inputs.query_mask, split, tile, outputs, vp);
    }
  });
}

template <typename T>
void slot_attention_read_backward(const SlotAttentionOptions& options,
                                  const SlotAttentionInputs<T>& inputs,
                                  const std::vector<Span>& query_spans, int64_t slots,
                                  SlotAttentionState<const T> memory_in, SequenceView<const T> d_o,
                                  SlotAttentionGradients<T> gradients,
                                  SlotAttentionState<T> dmemory) {
  const Kernel<T> kernel(options, inputs, inputs.q.H, slots, inputs.q.K, d_o.K);
  const int64_t np = kernel.np, kp = kernel.kp, vp = kernel.vp;
  const Reads<T> reads_of(kernel, query_spans);
  // Where spans are split, the gradients of their splits wait here to be added up in order.
  const int64_t size = kernel.matrix_size();
  std::vector<T> matrices(reads_of.is_split() ? static_cast<size_t>(reads_of.count() * size) : 0);
  std::vector<Memory<T>> parts(reads_of.is_split() ? static_cast<size_t>(reads_of.count()) : 0);
  reads_of.run([&](int64_t task) {
    const HeadSplit split = reads_of.split(task);
    const int64_t span = reads_of.span_split(task).span;
    Scratch<T> scratch;
    Memory<T> memory, whole;
    Memory<T>& gradient = reads_of.is_split() ? parts[task] : whole;
    memory.matrix = scratch.take(size);
    gradient.matrix = reads_of.is_split() ? matrices.data() + task * size : scratch.take(size);
    T* transposed = scratch.take(kernel.transposed_size());
    T* memory_keys = scratch.take(np * kp);
    T* queries = scratch.take(kChunk * kp);
    T* doutputs = scratch.take(kChunk * vp);
    T* products = scratch.take(kChunk * np);
    T* dreads = scratch.take(kChunk * np);
    T* to_keys = scratch.take(kChunk * np);
    T* to_values = scratch.take(kChunk * np);
    T* to_sums = scratch.take(kChunk * np);
    T* kept_rows = scratch.take(kChunk * np);
    T* dqueries = scratch.take(kChunk * kp);
    kernel.load_memory({}, 0, 0, transposed, gradient);
    gradient.mass.assign(static_cast<size_t>(np), 0);
    kernel.load_memory(memory_in, span, split.head, transposed, memory);
    chunked::transpose(memory.matrix, np, kp, np, memory_keys, kp);
    const std::vector<T> factors = finished_factors(kernel, memory.mass);
    Tile<T> tile;
    for (tile.t = split.begin; tile.t < split.end; tile.t += tile.n) {
      const int64_t n = tile.n = std::min(kChunk, split.end - tile.t);
      load_queries(kernel, split, tile, queries);
      chunked::load_rows(d_o, inputs.query_mask, split.row, tile.t, n, split.head, doutputs, vp);
      tile_gemm<T>(n, np, kernel.K, T(1), {queries, kp}, {memory.matrix, np}, Write::overwrite,
                   products, np);
      tile_gemm<T>(n, np, kernel.V, T(1), {doutputs, vp}, {memory.matrix + kp * np, np},
                   Write::overwrite, dreads, np);
      kernel.products_to_logits(n, {factors.data(), 0}, products);
      kernel.read_gradient_rows(n, {factors.data(), 0},
                                kernel.kept_rows(split.row, tile.t, n, split.head, kept_rows),
                                products, dreads, to_keys, to_values, to_sums);
      // Means in log space do not depend on the normalizer. Masked queries pass zeros: do is zero.
      for (int64_t i = 0; !kernel.log_space && i < n * np; ++i) gradient.mass[i % np] += to_sums[i];
      tile_gemm<T>(n, kp, kernel.N, T(1), {to_keys, np}, {memory_keys, kp}, Write::overwrite,
                   dqueries, kp);
      store_rows(gradients.q, inputs.query_mask, split, tile, dqueries, kp);
      tile_gemm<T>(kernel.K, np, n, T(1), {queries, kp, true}, {to_keys, np}, Write::accumulate,
                   gradient.matrix, np);
      tile_gemm<T>(kernel.V, np, n, T(1), {doutputs, vp, true}, {to_values, np}, Write::accumulate,
                   gradient.matrix + kp * np, np);
    }
    if (!reads_of.is_split()) kernel.store_memory(gradient, dmemory, span, split.head, transposed);
  });
  if (!reads_of.is_split()) return;
  reads_of.run([&](int64_t task) {
    const chunked::Split& span_split = reads_of.span_split(task);
    if (span_split.index > 0) return;
    for (int64_t other = 1; other < span_split.count; ++other) {
      const Memory<T>& part = parts[task + other * kernel.H];
      for (int64_t i = 0; i < size; ++i) parts[task].matrix[i] += part.matrix[i];
      for (int64_t l = 0; l < np; ++l) parts[task].mass[l] += part.mass[l];
    }
    Scratch<T> scratch;
    kernel.store_memory(parts[task], dmemory, span_split.span, task % kernel.H,
                        scratch.take(kernel.transposed_size()));
  });
}

#define LINNET_INSTANTIATE(T)                                                                      \
  template void slot_attention_memory_forward<T>(const SlotAttentionOptions&,                      \
                                                 const SlotAttentionInputs<T>&,                    \
                                                 const std::vector<Span>&, SlotAttentionState<T>); \
  template void slot_attention_memory_backward<T>(                                                 \
      const SlotAttentionOptions&, const SlotAttentionInputs<T>&, const std::vector<Span>&,        \
      SlotAttentionState<const T>, SlotAttentionState<const T>, SlotAttentionGradients<T>);        \
  template void slot_attention_read_forward<T>(                                                    \
      const SlotAttentionOptions&, const SlotAttentionInputs<T>&, const std::vector<Span>&,        \
      int64_t, SlotAttentionState<const T>, SequenceView<T>);                                      \
  template void slot_attention_read_backward<T>(                                                   \
      const SlotAttentionOptions&, const SlotAttentionInputs<T>&, const std::vector<Span>&,        \
      int64_t, SlotAttentionState<const T>, SequenceView<const T>, SlotAttentionGradients<T>,      \
      SlotAttentionState<T>);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet
