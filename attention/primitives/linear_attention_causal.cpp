// Causal linear attention by chunks: inside a chunk a triangular product, across chunks the state.
// Backward is a forward scan for dq (with S) and a reverse scan for dk and dv (with
// R_j = sum_{i >= j} phi(q_i) G_i^T); both recompute what they need, nothing per token is stored.
#include <algorithm>

#include "attention/primitives/linear_attention_decay.h"
#include "attention/primitives/linear_attention_tile.h"
#include "core/error.h"
#include "core/threads.h"

namespace linnet {
namespace {

using chunked::Scratch;
using chunked::Segment;
using linear_attention_detail::ChunkDecay;
using linear_attention_detail::kChunk;
using linear_attention_detail::Kernel;
using linear_attention_detail::Partials;
using linear_attention_detail::Side;

template <typename T>
struct Causal {
  Causal(const LinearAttentionOptions& options, const LinearAttentionInputs<T>& inputs,
         const std::vector<Span>& spans_in)
      : kernel(options, inputs, inputs.k.H, inputs.q.H, inputs.v.K),
        spans(spans_in),
        // Pieces of a span add up only where nothing decays.
        segments(chunked::split_spans(spans, kernel.key_heads,
                                      inputs.log_decay == nullptr ? thread_count() : 1)),
        tasks(static_cast<int64_t>(segments.size()) * kernel.key_heads) {
    require(inputs.q.T == inputs.k.T, "linear_attention: causal attention of ", inputs.q.T,
            " queries over ", inputs.k.T, " keys; expected as many");
  }

  Kernel<T> kernel;
  const std::vector<Span>& spans;
  std::vector<Segment> segments;
  int64_t tasks;

  template <typename Body>
  void run(const Body& body) const {
    chunked::run_tasks(tasks, kernel.work(spans), [&](int64_t task) {
      body(task / kernel.key_heads, task % kernel.key_heads);
    });
  }
};

// state += sum over a segment's tokens of phi(k_j) v_j^T.
template <typename T>
void add_keys(const Kernel<T>& kernel, int64_t row, const Segment& segment, int64_t key_head,
              T* state) {
  Scratch<T> scratch;
  T* keys = scratch.take(kChunk * kernel.mp);
  T* values = scratch.take(kChunk * kernel.vp);
  for (int64_t t = segment.begin; t < segment.end; t += kChunk) {
    const int64_t n = std::min(kChunk, segment.end - t);
    kernel.load_features(Side::key, row, t, n, key_head, keys);
    kernel.load_values(row, t, n, key_head, values);
    kernel.accumulate(n, keys, values, nullptr, state);
  }
}

// Asks for the rows of a head in the chunk that begins with token t, while products are made.
template <bool kWrite, typename E>
void ask(const SequenceView<E>& view, int64_t row, int64_t t, int64_t head) {
  chunked::prefetch_rows<kWrite>(view, row, t, t + kChunk, head);
}

template <typename T>
void forward_segment(const Kernel<T>& kernel, int64_t row, const Segment& segment, int64_t key_head,
                     bool state_wanted, T* state, Scratch<T>& scratch, SequenceView<T> y,
                     T* denominators) {
  const int64_t mp = kernel.mp, vp = kernel.vp;
  const T* mass = state + mp * vp;
  T* keys = scratch.take(kChunk * mp);
  T* keys_turned = scratch.take(mp * kChunk);
  T* values = scratch.take(kChunk * vp);
  T* queries = scratch.take(kChunk * mp);
  T* weights = scratch.take(kChunk * kChunk);
  T* numerators = scratch.take(kChunk * vp);
  T* row_denominators = scratch.take(kChunk);
  for (int64_t t = segment.begin; t < segment.end; t += kChunk) {
    const int64_t n = std::min(kChunk, segment.end - t);
    kernel.load_features(Side::key, row, t, n, key_head, keys);
    kernel.load_values(row, t, n, key_head, values);
    chunked::transpose(keys, mp, n, mp, keys_turned, kChunk);
    const ChunkDecay<T> decay(kernel.inputs, row, t, n, key_head);
    for (int64_t h = key_head * kernel.group; h < (key_head + 1) * kernel.group; ++h) {
      kernel.load_features(Side::query, row, t, n, h, queries);
      ask<true>(y, row, t, h);
      chunked::lower_product(n, kernel.m, queries, mp, keys_turned, kChunk, weights, kChunk);
      decay.scale_lower(weights);
      decay.scale_since_start(queries, mp);
      ask<false>(kernel.inputs.q, row, t + kChunk, h);
      tile_gemm<T>(n, vp, kernel.m, T(1), {queries, mp}, {state, vp}, Write::overwrite, numerators,
                   vp);
      chunked::add_lower_times(n, vp, weights, kChunk, values, vp, numerators, vp);
      for (int64_t i = 0; kernel.normalized && i < n; ++i) {
        row_denominators[i] = dot_row(queries + i * mp, mass, mp) +
                              sum_row(weights + i * kChunk, chunked::padded(i + 1));
      }
      kernel.store_outputs(row, t, n, h, numerators, row_denominators, y, denominators);
    }
    if (!state_wanted && t + n == segment.end) break;
    ask<false>(kernel.inputs.k, row, t + kChunk, key_head);
    ask<false>(kernel.inputs.v, row, t + kChunk, key_head);
    decay.scale_state(state, kernel.state_size());
    decay.scale_until_end(keys, mp);
    kernel.accumulate(n, keys, values, nullptr, state);
  }
}

// What backward reads besides the inputs.
template <typename T>
struct Outputs {
  SequenceView<const T> y;
  const T* denominators;
  SequenceView<const T> dy;
};

// adjoint += sum over a segment's queries of phi(q_i) G_i^T.
template <typename T>
void add_queries(const Kernel<T>& kernel, int64_t row, const Segment& segment, int64_t key_head,
                 const Outputs<T>& outputs, T* adjoint) {
  Scratch<T> scratch;
  T* queries = scratch.take(kChunk * kernel.mp);
  T* G = scratch.take(kChunk * kernel.vp);
  T* ddenominators = scratch.take(kChunk);
  for (int64_t t = segment.begin; t < segment.end; t += kChunk) {
    const int64_t n = std::min(kChunk, segment.end - t);
    for (int64_t h = key_head * kernel.group; h < (key_head + 1) * kernel.group; ++h) {
      kernel.load_features(Side::query, row, t, n, h, queries);
      kernel.load_output_gradients(row, t, n, h, outputs.y, outputs.denominators, outputs.dy, G,
                                   ddenominators);
      kernel.accumulate(n, queries, G, ddenominators, adjoint);
    }
  }
}

// L[i, j] = G_i . v_j + dden_i, j <= i: the gradient of the weights A_ij.
template <typename T>
void weight_gradients(const Kernel<T>& kernel, int64_t n, const T* G, const T* ddenominators,
                      const T* values_turned, T* out) {
  chunked::lower_product(n, kernel.V, G, kernel.vp, values_turned, kChunk, out, kChunk,
                         kernel.normalized ? ddenominators : nullptr);
}

// The part of the log-decay's gradient that is made of one side's features and their gradients:
// see sum_decay_gradients.
template <typename T>
void add_decay_gradients(const Kernel<T>& kernel, int64_t row, int64_t t, int64_t n,
                         int64_t key_head, T sign, const T* features, const T* dfeatures,
                         T* gradients) {
  for (int64_t i = 0; i < n; ++i) {
    gradients[(row * kernel.inputs.k.T + t + i) * kernel.key_heads + key_head] +=
        sign * dot_row(features + i * kernel.mp, dfeatures + i * kernel.mp, kernel.mp);
  }
}

// dq of a segment. `turned` holds the transposed state S^T [vp, mp], then z.
template <typename T>
void query_gradients(const Kernel<T>& kernel, int64_t row, const Segment& segment, int64_t key_head,
                     const Outputs<T>& outputs, T* turned, Scratch<T>& scratch,
                     const LinearAttentionGradients<T>& gradients, T* dproportions) {
  const int64_t mp = kernel.mp, vp = kernel.vp;
  T* mass = turned + vp * mp;
  T* keys = scratch.take(kChunk * mp);
  T* values = scratch.take(kChunk * vp);
  T* values_turned = scratch.take(vp * kChunk);
  T* G = scratch.take(kChunk * vp);
  T* ddenominators = scratch.take(kChunk);
  T* dweights = scratch.take(kChunk * kChunk);
  T* queries = scratch.take(kChunk * mp);
  T* dqueries = scratch.take(kChunk * mp);
  for (int64_t t = segment.begin; t < segment.end; t += kChunk) {
    const int64_t n = std::min(kChunk, segment.end - t);
    kernel.load_features(Side::key, row, t, n, key_head, keys);
    kernel.load_values(row, t, n, key_head, values);
    chunked::transpose(values, vp, n, vp, values_turned, kChunk);
    const ChunkDecay<T> decay(kernel.inputs, row, t, n, key_head);
    for (int64_t h = key_head * kernel.group; h < (key_head + 1) * kernel.group; ++h) {
      kernel.load_output_gradients(row, t, n, h, outputs.y, outputs.denominators, outputs.dy, G,
                                   ddenominators);
      ask<true>(gradients.q, row, t, h);
      ask<false>(kernel.inputs.q, row, t, h);
      weight_gradients(kernel, n, G, ddenominators, values_turned, dweights);
      decay.scale_lower(dweights);
      ask<false>(outputs.y, row, t + kChunk, h);
      ask<false>(outputs.dy, row, t + kChunk, h);
      tile_gemm<T>(n, mp, kernel.V, T(1), {G, vp}, {turned, mp}, Write::overwrite, dqueries, mp);
      for (int64_t i = 0; kernel.normalized && i < n; ++i) {
        axpy_row(mp, ddenominators[i], mass, dqueries + i * mp);
      }
      decay.scale_since_start(dqueries, mp);
      chunked::add_lower_times(n, mp, dweights, kChunk, keys, mp, dqueries, mp);
      if (gradients.log_decay != nullptr) {
        kernel.load_features(Side::query, row, t, n, h, queries);
        add_decay_gradients(kernel, row, t, n, key_head, T(-1), queries, dqueries,
                            gradients.log_decay);
      }
      kernel.store_feature_gradients(Side::query, row, t, n, h, dqueries, gradients.q,
                                     dproportions);
    }
    if (t + n == segment.end) break;
    ask<false>(kernel.inputs.k, row, t + kChunk, key_head);
    ask<false>(kernel.inputs.v, row, t + kChunk, key_head);
    decay.scale_state(turned, kernel.state_size());
    decay.scale_until_end(keys, mp);
    tile_gemm<T>(kernel.V, mp, n, T(1), {values, vp, true}, {keys, mp}, Write::accumulate, turned,
                 mp);
    for (int64_t i = 0; i < n; ++i) axpy_row(mp, T(1), keys + i * mp, mass);
  }
}

// dk and dv of a segment; `adjoint` is R [mp, vp] with its mass, after the segment on entry, before
// it on return.
template <typename T>
void key_gradients(const Kernel<T>& kernel, int64_t row, const Segment& segment, int64_t key_head,
                   const Outputs<T>& outputs, T* adjoint, Scratch<T>& scratch,
                   const LinearAttentionGradients<T>& gradients, T* dproportions) {
  const int64_t mp = kernel.mp, vp = kernel.vp;
  const T* adjoint_mass = adjoint + mp * vp;
  T* adjoint_turned = scratch.take(vp * mp);
  T* keys = scratch.take(kChunk * mp);
  T* keys_turned = scratch.take(mp * kChunk);
  T* values = scratch.take(kChunk * vp);
  T* values_turned = scratch.take(vp * kChunk);
  T* queries = scratch.take(kChunk * mp);
  T* G = scratch.take(kChunk * vp);
  T* ddenominators = scratch.take(kChunk);
  T* weights = scratch.take(kChunk * kChunk);
  T* dkeys = scratch.take(kChunk * mp);
  T* dvalues = scratch.take(kChunk * vp);
  const int64_t chunks = (segment.end - segment.begin + kChunk - 1) / kChunk;
  for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
    const int64_t t = segment.begin + chunk * kChunk, n = std::min(kChunk, segment.end - t);
    kernel.load_features(Side::key, row, t, n, key_head, keys);
    kernel.load_values(row, t, n, key_head, values);
    chunked::transpose(keys, mp, n, mp, keys_turned, kChunk);
    chunked::transpose(values, vp, n, vp, values_turned, kChunk);
    chunked::transpose(adjoint, vp, mp, vp, adjoint_turned, mp);
    ask<true>(gradients.k, row, t, key_head);
    ask<true>(gradients.v, row, t, key_head);
    tile_gemm<T>(n, mp, kernel.V, T(1), {values, vp}, {adjoint_turned, mp}, Write::overwrite, dkeys,
                 mp);
    for (int64_t i = 0; i < n; ++i) axpy_row(mp, T(1), adjoint_mass, dkeys + i * mp);
    ask<false>(kernel.inputs.k, row, t - kChunk, key_head);
    ask<false>(kernel.inputs.v, row, t - kChunk, key_head);
    tile_gemm<T>(n, vp, kernel.m, T(1), {keys, mp}, {adjoint, vp}, Write::overwrite, dvalues, vp);
    const ChunkDecay<T> decay(kernel.inputs, row, t, n, key_head);
    decay.scale_until_end(dkeys, mp);
    decay.scale_until_end(dvalues, vp);
    decay.scale_state(adjoint, kernel.state_size());
    for (int64_t h = key_head * kernel.group; h < (key_head + 1) * kernel.group; ++h) {
      kernel.load_features(Side::query, row, t, n, h, queries);
      kernel.load_output_gradients(row, t, n, h, outputs.y, outputs.denominators, outputs.dy, G,
                                   ddenominators);
      ask<false>(kernel.inputs.q, row, t - kChunk, h);
      chunked::lower_product(n, kernel.m, queries, mp, keys_turned, kChunk, weights, kChunk);
      decay.scale_lower(weights);
      ask<false>(outputs.y, row, t - kChunk, h);
      ask<false>(outputs.dy, row, t - kChunk, h);
      chunked::add_lower_transposed_times(n, vp, weights, kChunk, G, vp, dvalues, vp);
      weight_gradients(kernel, n, G, ddenominators, values_turned, weights);
      decay.scale_lower(weights);
      chunked::add_lower_transposed_times(n, mp, weights, kChunk, queries, mp, dkeys, mp);
      decay.scale_since_start(queries, mp);
      kernel.accumulate(n, queries, G, ddenominators, adjoint);
    }
    if (gradients.log_decay != nullptr) {
      add_decay_gradients(kernel, row, t, n, key_head, T(1), keys, dkeys, gradients.log_decay);
    }
    kernel.store_feature_gradients(Side::key, row, t, n, key_head, dkeys, gradients.k, dproportions,
                                   keys);
    if (gradients.v) kernel.store_value_gradients(row, t, n, key_head, dvalues, gradients.v);
  }
}

}  // namespace

template <typename T>
void linear_attention_causal_forward(const LinearAttentionOptions& options,
                                     const LinearAttentionInputs<T>& inputs,
                                     const std::vector<Span>& spans,
                                     LinearAttentionState<const T> state_in,
                                     LinearAttentionState<T> state_out, SequenceView<T> y,
                                     T* denominators) {
  const Causal<T> call(options, inputs, spans);
  const Kernel<T>& kernel = call.kernel;
  const std::vector<Segment>& segments = call.segments;
  Partials<T> sums(segments, kernel.key_heads, kernel.state_size());
  if (sums.needed()) {
    call.run([&](int64_t s, int64_t head) {
      if (segments[s].index + 1 == segments[s].count) return;
      add_keys(kernel, spans[segments[s].span].row, segments[s], head, sums.at(s, head));
    });
  }
  call.run([&](int64_t s, int64_t head) {
    const Segment& segment = segments[s];
    const Span& span = spans[segment.span];
    Scratch<T> scratch;
    T* state = scratch.take(kernel.state_size());
    kernel.load_state(span.carries_in ? state_in : LinearAttentionState<const T>{}, span.row, head,
                      state);
    if (segment.count > 1) sums.add_before(segments, s, head, state);
    const bool last = segment.index + 1 == segment.count && span.carries_out;
    const bool state_wanted = last && (state_out.memory != nullptr || state_out.mass != nullptr);
    forward_segment(kernel, span.row, segment, head, state_wanted, state, scratch, y, denominators);
    if (state_wanted) kernel.store_state(state, state_out, span.row, head);
  });
}

template <typename T>
void linear_attention_causal_backward(
    const LinearAttentionOptions& options, const LinearAttentionInputs<T>& inputs,
    const std::vector<Span>& spans, LinearAttentionState<const T> state_in, SequenceView<const T> y,
    const T* denominators, SequenceView<const T> dy, LinearAttentionState<const T> dstate_out,
    LinearAttentionGradients<T> gradients, LinearAttentionState<T> dstate_in) {
  const Causal<T> call(options, inputs, spans);
  const Kernel<T>& kernel = call.kernel;
  const std::vector<Segment>& segments = call.segments;
  const Outputs<T> outputs{y, denominators, dy};
  Partials<T> before(segments, kernel.key_heads, kernel.state_size());
  Partials<T> after(segments, kernel.key_heads, kernel.state_size());
  if (gradients.log_decay != nullptr) {
    std::fill_n(gradients.log_decay, inputs.k.B * inputs.k.T * kernel.key_heads, T(0));
  }
  if (before.needed()) {
    call.run([&](int64_t s, int64_t head) {
      const int64_t row = spans[segments[s].span].row;
      add_keys(kernel, row, segments[s], head, before.at(s, head));
      add_queries(kernel, row, segments[s], head, outputs, after.at(s, head));
    });
  }
  call.run([&](int64_t s, int64_t head) {
    const Segment& segment = segments[s];
    const Span& span = spans[segment.span];
    {
      Scratch<T> scratch;
      T* state = scratch.take(kernel.state_size());
      T* turned = scratch.take(kernel.state_size());
      kernel.load_state(span.carries_in ? state_in : LinearAttentionState<const T>{}, span.row,
                        head, state);
      if (segment.count > 1) before.add_before(segments, s, head, state);
      chunked::transpose(state, kernel.vp, kernel.mp, kernel.vp, turned, kernel.mp);
      std::copy_n(state + kernel.mp * kernel.vp, kernel.mp, turned + kernel.mp * kernel.vp);
      query_gradients(kernel, span.row, segment, head, outputs, turned, scratch, gradients,
                      gradients.query_proportions);
    }
    Scratch<T> scratch;
    T* adjoint = scratch.take(kernel.state_size());
    kernel.load_state(span.carries_out ? dstate_out : LinearAttentionState<const T>{}, span.row,
                      head, adjoint);
    if (segment.count > 1) after.add_after(segments, s, head, adjoint);
    key_gradients(kernel, span.row, segment, head, outputs, adjoint, scratch, gradients,
                  gradients.key_proportions);
    if (segment.index == 0 && span.carries_in) {
      kernel.store_state(adjoint, dstate_in, span.row, head);
    }
    if (gradients.log_decay == nullptr) return;
    T* state = scratch.take(kernel.state_size());
    kernel.load_state(span.carries_in ? state_in : LinearAttentionState<const T>{}, span.row, head,
                      state);
    linear_attention_detail::sum_decay_gradients(
        span, inputs.key_mask, inputs.k.T, kernel.key_heads, head,
        static_cast<double>(dot_row(state, adjoint, kernel.state_size())), gradients.log_decay);
  });
}

#define LINNET_INSTANTIATE(T)                                                                   \
  template void linear_attention_causal_forward<T>(                                             \
      const LinearAttentionOptions&, const LinearAttentionInputs<T>&, const std::vector<Span>&, \
      LinearAttentionState<const T>, LinearAttentionState<T>, SequenceView<T>, T*);             \
  template void linear_attention_causal_backward<T>(                                            \
      const LinearAttentionOptions&, const LinearAttentionInputs<T>&, const std::vector<Span>&, \
      LinearAttentionState<const T>, SequenceView<const T>, const T*, SequenceView<const T>,    \
      LinearAttentionState<const T>, LinearAttentionGradients<T>, LinearAttentionState<T>);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet
