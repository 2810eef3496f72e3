// Noncausal and cross linear attention: a memory summed once over the keys, and its read-out.
#include <algorithm>

#include "attention/primitives/linear_attention/tile.h"
#include "core/error.h"
#include "core/threads.h"

namespace linnet {
namespace {

using chunked::kChunk;
using chunked::Scratch;
using chunked::Split;
using linear_attention_detail::FeatureTile;
using linear_attention_detail::Kernel;
using linear_attention_detail::Partials;
using linear_attention_detail::Side;

// One task per (split, key head) over the spans of one side.
template <typename T>
struct Pass {
  Pass(const Kernel<T>& kernel_in, const std::vector<Span>& spans_in)
      : kernel(kernel_in),
        spans(spans_in),
        splits(chunked::split_spans(spans, kernel.key_heads, thread_count())) {}

  const Kernel<T>& kernel;
  const std::vector<Span>& spans;
  std::vector<Split> splits;

  // Calls task(split number, key head, row).
  template <typename Task>
  void run(const Task& task) const {
    chunked::run_tasks(static_cast<int64_t>(splits.size()) * kernel.key_heads, kernel.work(spans),
                       [&](int64_t number) {
                         const int64_t s = number / kernel.key_heads;
                         task(s, number % kernel.key_heads, spans[splits[s].span].row);
                       });
  }
  // Writes to `to`, for each span, the sum over its splits of the terms that sum(split, key head,
  // row, state, scratch) adds to `state`.
  template <typename Sum>
  void reduce(LinearAttentionState<T> to, const Sum& sum) const {
    Partials<T> partials(splits, kernel.key_heads, kernel.state_size());
    run([&](int64_t s, int64_t head, int64_t row) {
      Scratch<T> scratch;
      if (splits[s].count > 1) {
        sum(splits[s], head, row, partials.at(s, head), scratch);
        return;
      }
      T* state = scratch.take(kernel.state_size());
      kernel.load_state({}, 0, head, state);
      sum(splits[s], head, row, state, scratch);
      kernel.store_state(state, to, splits[s].span, head);
    });
    if (!partials.needed()) return;
    run([&](int64_t s, int64_t head, int64_t) {
      if (splits[s].count == 1 || splits[s].index + 1 < splits[s].count) return;
      T* state = partials.at(s, head);
      partials.add_before(splits, s, head, state);
      kernel.store_state(state, to, splits[s].span, head);
    });
  }
};

// Calls body(t, n) for the chunks of a split.
template <typename Body>
void for_chunks(const Split& split, const Body& body) {
  for (int64_t t = split.begin; t < split.end; t += kChunk) {
    body(t, std::min(kChunk, split.end - t));
  }
}

// From gradients of features to those of q or k and of proportions.
template <typename T>
void pass_gradients(const Kernel<T>& kernel, Side side, int64_t row, int64_t t, int64_t n,
                    int64_t h, const FeatureTile<T>& tile, T* dfeatures, const SequenceView<T>& dx,
                    T* dproportions) {
  T dangles[kChunk] = {};
  kernel.fold_gradients(n, tile, dfeatures, dproportions == nullptr ? nullptr : dangles);
  kernel.store_feature_gradients(side, row, t, n, h, tile, dfeatures, dx);
  kernel.store_proportion_gradients(side, row, t, n, h, dangles, dproportions);
}

}  // namespace

template <typename T>
void linear_attention_memory_forward(const LinearAttentionOptions& options,
                                     const LinearAttentionInputs<T>& inputs,
                                     const std::vector<Span>& key_spans,
                                     LinearAttentionState<T> memory) {
  const Kernel<T> kernel(options, inputs, inputs.k.H, inputs.k.H, inputs.v.K);
  const Pass<T> pass(kernel, key_spans);
  pass.reduce(memory,
              [&](const Split& split, int64_t head, int64_t row, T* state, Scratch<T>& scratch) {
                const FeatureTile<T> keys = kernel.take_features(scratch, kChunk);
                T* values = scratch.take(kChunk * kernel.vp);
                for_chunks(split, [&](int64_t t, int64_t n) {
                  kernel.load_features(Side::key, row, t, n, head, keys);
                  kernel.load_values(row, t, n, head, values);
                  kernel.accumulate(n, keys.features, values, nullptr, state);
                });
              });
}

template <typename T>
void linear_attention_memory_backward(const LinearAttentionOptions& options,
                                      const LinearAttentionInputs<T>& inputs,
                                      const std::vector<Span>& key_spans,
                                      LinearAttentionState<const T> dmemory,
                                      LinearAttentionGradients<T> gradients) {
  const Kernel<T> kernel(options, inputs, inputs.k.H, inputs.k.H, inputs.v.K);
  const Pass<T> pass(kernel, key_spans);
  const int64_t mp = kernel.mp, vp = kernel.vp;
  pass.run([&](int64_t s, int64_t head, int64_t row) {
    Scratch<T> scratch;
    T* state = scratch.take(kernel.state_size());
    T* transposed = scratch.take(vp * mp);
    const FeatureTile<T> keys = kernel.take_features(scratch, kChunk);
    T* values = scratch.take(kChunk * vp);
    T* dkeys = scratch.take(kChunk * mp);
    T* dvalues = scratch.take(kChunk * vp);
    kernel.load_state(dmemory, pass.splits[s].span, head, state);
    chunked::transpose(state, vp, mp, vp, transposed, mp);
    for_chunks(pass.splits[s], [&](int64_t t, int64_t n) {
      kernel.load_features(Side::key, row, t, n, head, keys);
      kernel.load_values(row, t, n, head, values);
      tile_gemm<T>(n, mp, kernel.V, T(1), {values, vp}, {transposed, mp}, Write::overwrite, dkeys,
                   mp);
      for (int64_t i = 0; i < n; ++i) axpy_row(mp, T(1), state + mp * vp, dkeys + i * mp);
      tile_gemm<T>(n, vp, kernel.m, T(1), {keys.features, mp}, {state, vp}, Write::overwrite,
                   dvalues, vp);
      pass_gradients(kernel, Side::key, row, t, n, head, keys, dkeys, gradients.k,
                     gradients.key_proportions);
      if (gradients.v) kernel.store_value_gradients(row, t, n, head, dvalues, gradients.v);
    });
  });
}

template <typename T>
void linear_attention_read_forward(const LinearAttentionOptions& options,
                                   const LinearAttentionInputs<T>& inputs,
                                   const std::vector<Span>& query_spans, int64_t key_heads,
                                   LinearAttentionState<const T> memory, SequenceView<T> y,
                                   T* denominators) {
  const Kernel<T> kernel(options, inputs, key_heads, inputs.q.H, y.K);
  const Pass<T> pass(kernel, query_spans);
  const int64_t mp = kernel.mp, vp = kernel.vp;
  pass.run([&](int64_t s, int64_t key_head, int64_t row) {
    Scratch<T> scratch;
    T* state = scratch.take(kernel.state_size());
    const FeatureTile<T> queries = kernel.take_features(scratch, kChunk);
    T* numerators = scratch.take(kChunk * vp);
    T* row_denominators = scratch.take(kChunk);
    kernel.load_state(memory, pass.splits[s].span, key_head, state);
    for_chunks(pass.splits[s], [&](int64_t t, int64_t n) {
      for (int64_t h = key_head * kernel.group; h < (key_head + 1) * kernel.group; ++h) {
        kernel.load_features(Side::query, row, t, n, h, queries);
        tile_gemm<T>(n, vp, kernel.m, T(1), {queries.features, mp}, {state, vp}, Write::overwrite,
                     numerators, vp);
        for (int64_t i = 0; i < n; ++i) {
          row_denominators[i] = dot_row(queries.features + i * mp, state + mp * vp, mp);
        }
        kernel.store_outputs(row, t, n, h, numerators, row_denominators, y, denominators);
      }
    });
  });
}

template <typename T>
void linear_attention_read_backward(const LinearAttentionOptions& options,
                                    const LinearAttentionInputs<T>& inputs,
                                    const std::vector<Span>& query_spans, int64_t key_heads,
                                    LinearAttentionState<const T> memory, SequenceView<const T> y,
                                    const T* denominators, SequenceView<const T> dy,
                                    LinearAttentionGradients<T> gradients,
                                    LinearAttentionState<T> dmemory) {
  const Kernel<T> kernel(options, inputs, key_heads, inputs.q.H, y.K);
  const Pass<T> pass(kernel, query_spans);
  const int64_t mp = kernel.mp, vp = kernel.vp;
  pass.reduce(dmemory, [&](const Split& split, int64_t key_head, int64_t row, T* dstate,
                           Scratch<T>& scratch) {
    T* state = scratch.take(kernel.state_size());
    T* transposed = scratch.take(vp * mp);
    const FeatureTile<T> queries = kernel.take_features(scratch, kChunk);
    T* G = scratch.take(kChunk * vp);
    T* ddenominators = scratch.take(kChunk);
    T* dqueries = scratch.take(kChunk * mp);
    kernel.load_state(memory, split.span, key_head, state);
    chunked::transpose(state, vp, mp, vp, transposed, mp);
    for_chunks(split, [&](int64_t t, int64_t n) {
      for (int64_t h = key_head * kernel.group; h < (key_head + 1) * kernel.group; ++h) {
        kernel.load_features(Side::query, row, t, n, h, queries);
        kernel.load_output_gradients(row, t, n, h, y, denominators, dy, G, ddenominators);
        tile_gemm<T>(n, mp, kernel.V, T(1), {G, vp}, {transposed, mp}, Write::overwrite, dqueries,
                     mp);
        for (int64_t i = 0; kernel.normalized && i < n; ++i) {
          axpy_row(mp, ddenominators[i], state + mp * vp, dqueries + i * mp);
        }
        pass_gradients(kernel, Side::query, row, t, n, h, queries, dqueries, gradients.q,
                       gradients.query_proportions);
        kernel.accumulate(n, queries.features, G, ddenominators, dstate);
      }
    });
  });
}

#define LINNET_INSTANTIATE(T)                                                                   \
  template void linear_attention_memory_forward<T>(                                             \
      const LinearAttentionOptions&, const LinearAttentionInputs<T>&, const std::vector<Span>&, \
      LinearAttentionState<T>);                                                                 \
  template void linear_attention_memory_backward<T>(                                            \
      const LinearAttentionOptions&, const LinearAttentionInputs<T>&, const std::vector<Span>&, \
      LinearAttentionState<const T>, LinearAttentionGradients<T>);                              \
  template void linear_attention_read_forward<T>(                                               \
      const LinearAttentionOptions&, const LinearAttentionInputs<T>&, const std::vector<Span>&, \
      int64_t, LinearAttentionState<const T>, SequenceView<T>, T*);                             \
  template void linear_attention_read_backward<T>(                                              \
      const LinearAttentionOptions&, const LinearAttentionInputs<T>&, const std::vector<Span>&, \
      int64_t, LinearAttentionState<const T>, SequenceView<const T>, const T*,                  \
      SequenceView<const T>, LinearAttentionGradients<T>, LinearAttentionState<T>);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet
