// Causal linear attention, forward: by scans, or by chunks, inside a chunk a triangular product,
// across chunks the state.
#include "attention/primitives/linear_attention/causal.h"

namespace linnet {
namespace {

using namespace linear_attention_detail;

// y of a split by chunks.
template <typename T>
void forward_split(const Causal<T>& call, const Split& split, int64_t key_head, bool state_wanted,
                   T* state, Scratch<T>& scratch, SequenceView<T> y, T* denominators, T* kept) {
  const Kernel<T>& kernel = call.kernel;
  const Span& span = call.spans[split.span];
  const int64_t row = span.row;
  const int64_t mp = kernel.mp, vp = kernel.vp;
  const T* mass = state + mp * vp;
  const FeatureTile<T> keys = kernel.take_features(scratch);
  T* keys_transposed = scratch.take(kernel.kp * kChunk);
  T* values = scratch.take(kChunk * vp);
  const FeatureTile<T> queries = kernel.take_features(scratch);
  T* weights = scratch.take(kChunk * kChunk);
  T* numerators = scratch.take(kChunk * vp);
  T* row_denominators = scratch.take(kChunk);
  for (int64_t t = split.begin; t < split.end; t += kChunk) {
    const int64_t n = std::min(kChunk, split.end - t);
    if (kept != nullptr && t > span.begin && (t - span.begin) % kBlockTokens == 0) {
      std::copy_n(state, kernel.state_size(), call.kept_at(kept, split.span, t, key_head));
    }
    kernel.load_features(Side::key, row, t, n, key_head, keys);
    kernel.load_values(row, t, n, key_head, values);
    transpose_keys(kernel, n, keys, keys_transposed);
    const ChunkDecay<T> decay(kernel.inputs, row, t, n, key_head);
    for (int64_t h = key_head * kernel.group; h < (key_head + 1) * kernel.group; ++h) {
      kernel.load_features(Side::query, row, t, n, h, queries);
      prefetch_chunk<true>(y, row, t, h);
      lower_weights(kernel, n, queries, keys_transposed, weights);
      scale_by_angles(kernel, n, queries, keys, weights);
      decay.scale_lower(weights);
      decay.scale_since_start(queries.features, mp);
      prefetch_chunk<false>(kernel.inputs.q, row, t + kChunk, h);
      tile_gemm<T>(n, vp, kernel.m, T(1), {queries.features, mp}, {state, vp}, Write::overwrite,
                   numerators, vp);
      add_triangle_times<T>(n, vp, {weights, kChunk}, values, vp, numerators, vp);
      if (kernel.normalized) {
        kernel.sum_denominators(n, queries.features, mass, weights, row_denominators);
      }
      kernel.store_outputs(row, t, n, h, numerators, row_denominators, y, denominators);
    }
    if (!state_wanted && t + n == split.end) break;
    prefetch_chunk<false>(kernel.inputs.k, row, t + kChunk, key_head);
    prefetch_chunk<false>(kernel.inputs.v, row, t + kChunk, key_head);
    decay.scale_state(state, kernel.state_size());
    decay.scale_until_end(keys.features, mp);
    kernel.accumulate(n, keys.features, values, nullptr, state);
  }
}

}  // namespace

template <typename T>
void linear_attention_causal_forward(const LinearAttentionOptions& options,
                                     const LinearAttentionInputs<T>& inputs,
                                     const std::vector<Span>& spans,
                                     LinearAttentionState<const T> state_in,
                                     LinearAttentionState<T> state_out, SequenceView<T> y,
                                     T* denominators, T* kept) {
  const Causal<T> call(options, inputs, spans);
  const Kernel<T>& kernel = call.kernel;
  const std::vector<Split>& splits = call.splits;
  Partials<T> sums(splits, kernel.key_heads, kernel.state_size());
  if (sums.needed()) {
    call.run([&](int64_t s, int64_t head) {
      if (splits[s].index + 1 == splits[s].count) return;
      add_keys(kernel, spans[splits[s].span].row, splits[s], head, sums.at(s, head));
    });
  }
  call.run([&](int64_t s, int64_t head) {
    const Split& split = splits[s];
    const Span& span = spans[split.span];
    Scratch<T> scratch;
    T* state = scratch.take(kernel.state_size());
    kernel.load_state(span.carries_in ? state_in : LinearAttentionState<const T>{}, span.row, head,
                      state);
    if (split.count > 1) sums.add_before(splits, s, head, state);
    const bool last = split.index + 1 == split.count && span.carries_out;
    const bool state_wanted = last && (state_out.memory != nullptr || state_out.mass != nullptr);
    if (scans(kernel)) {
      scan_outputs(call, split, head, state, scratch.nested(), y, denominators, kept);
    } else {
      forward_split(call, split, head, state_wanted, state, scratch, y, denominators, kept);
    }
    if (state_wanted) kernel.store_state(state, state_out, span.row, head);
  });
}

template <typename T>
int64_t linear_attention_kept_elements(const LinearAttentionOptions& options,
                                       const LinearAttentionInputs<T>& inputs,
                                       const std::vector<Span>& spans) {
  const Causal<T> call(options, inputs, spans);
  return call.kept_states * call.kernel.key_heads * call.kernel.state_size();
}

#define LINNET_INSTANTIATE(T)                                                                   \
  template void linear_attention_causal_forward<T>(                                             \
      const LinearAttentionOptions&, const LinearAttentionInputs<T>&, const std::vector<Span>&, \
      LinearAttentionState<const T>, LinearAttentionState<T>, SequenceView<T>, T*, T*);         \
  template int64_t linear_attention_kept_elements<T>(                                           \
      const LinearAttentionOptions&, const LinearAttentionInputs<T>&, const std::vector<Span>&);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet
