// Causal linear attention, backward: by scans, or by chunks, last to first, with R_j = sum_{i >= j}
// phi(q_i) G_i^T, which make all gradients of a chunk at once. Block by block, the state before
// every chunk is recomputed from the one that forward kept.
#include "attention/primitives/linear_attention/causal.h"

namespace linnet {
namespace {

using namespace linear_attention_detail;

// adjoint += sum over a split's queries of phi(q_i) G_i^T.
template <typename T>
void add_queries(const Kernel<T>& kernel, int64_t row, const Split& split, int64_t key_head,
                 const Outputs<T>& outputs, T* adjoint) {
  Scratch<T> scratch;
  const FeatureTile<T> queries = kernel.take_features(scratch);
  T* G = scratch.take(kChunk * kernel.vp);
  T* ddenominators = scratch.take(kChunk);
  for (int64_t t = split.begin; t < split.end; t += kChunk) {
    const int64_t n = std::min(kChunk, split.end - t);
    for (int64_t h = key_head * kernel.group; h < (key_head + 1) * kernel.group; ++h) {
      kernel.load_features(Side::query, row, t, n, h, queries);
      kernel.load_output_gradients(row, t, n, h, outputs.y, outputs.denominators, outputs.dy, G,
                                   ddenominators);
      kernel.accumulate(n, queries.features, G, ddenominators, adjoint);
    }
  }
}

// L[i, j] = G_i . v_j + dden_i, j <= i: the gradient of the weights A_ij.
template <typename T>
void weight_gradients(const Kernel<T>& kernel, int64_t n, const T* G, const T* ddenominators,
                      const T* values_transposed, T* out) {
  chunked::lower_product(n, kernel.V, G, kernel.vp, values_transposed, kChunk, out, kChunk,
                         kernel.normalized ? ddenominators : nullptr);
}

// Adds to the gradients of the angles of queries and keys the terms that come through the cosines
// of their differences: weights [n, kChunk] before, dweights after decay, neither scaled by
// cosines.
template <typename T>
void add_angle_gradients(int64_t n, const FeatureTile<T>& queries, const FeatureTile<T>& keys,
                         const T* weights, const T* dweights, T* dquery_angles, T* dkey_angles) {
  for (int64_t i = 0; i < n; ++i) {
    simd::Vector<T> total = {};
    for (int64_t j = 0; j <= i; j += simd::kLanes<T>) {
      const int64_t at = i * kChunk + j;
      // The derivative of cos(theta_i - theta_j) by theta_i.
      const simd::Vector<T> slope = queries.cosines[i] * simd::load(keys.sines + j) -
                                    queries.sines[i] * simd::load(keys.cosines + j);
      const simd::Vector<T> share = simd::load(weights + at) * simd::load(dweights + at) * slope;
      total += share;
      simd::store(dkey_angles + j, simd::load(dkey_angles + j) - share);
    }
    dquery_angles[i] += simd::sum<T>(total);
  }
}

// The part of the log-decay's gradient that is made of one side's features and their gradients:
// see sum_decay_gradients.
template <typename T>
void add_decay_gradients(const Kernel<T>& kernel, int64_t row, int64_t t, int64_t n,
                         int64_t key_head, T sign, const T* features, const T* dfeatures,
                         T* gradients) {
  for (int64_t i = 0; i < n; ++i) {
    gradients[(row * kernel.inputs.k.T + t + i) * kernel.key_heads + key_head] +=
        sign * dot_row(features + i * kernel.kp, dfeatures + i * kernel.kp, kernel.kp);
  }
}

// S^T [vp, mp] and z of S [mp, vp] and z.
template <typename T>
void transpose_state(const Kernel<T>& kernel, const T* state, T* out) {
  const int64_t mp = kernel.mp, vp = kernel.vp;
  chunked::transpose(state, vp, mp, vp, out, mp);
  std::copy_n(state + mp * vp, mp, out + vp * mp);
}

// Inputs of the reverse scan from a block's keys.
template <typename T>
struct BlockTiles {
  BlockTiles(const Kernel<T>& kernel, Scratch<T>& scratch)
      : states(scratch.take(kBlockTokens / kChunk * kernel.state_size())),
        keys(kernel.take_features(scratch, kBlockTokens)),
        values(scratch.take(kBlockTokens * kernel.vp)) {}
  T* states;  // S^T [vp, mp] and z [mp] before each chunk
  FeatureTile<T> keys;
  T* values;  // [kBlockTokens, vp]
};

// Fills `tiles` for tokens begin ... end - 1; the state before the first chunk is there already.
template <typename T>
void make_block(const Kernel<T>& kernel, int64_t row, int64_t begin, int64_t end, int64_t key_head,
                const BlockTiles<T>& tiles, Scratch<T> scratch) {
  const int64_t mp = kernel.mp, vp = kernel.vp, size = kernel.state_size();
  T* decayed_keys = scratch.take(kChunk * mp);
  T* decayed_state = scratch.take(size);
  T* state = tiles.states;
  for (int64_t t = begin; t < end; t += kChunk, state += size) {
    const int64_t n = std::min(kChunk, end - t);
    const FeatureTile<T> tile = kernel.from_token(tiles.keys, t - begin);
    const T* keys = tile.features;
    T* values = tiles.values + (t - begin) * vp;
    kernel.load_features(Side::key, row, t, n, key_head, tile);
    kernel.load_values(row, t, n, key_head, values);
    if (t + n == end) return;
    prefetch_chunk<false>(kernel.inputs.k, row, t + kChunk, key_head);
    prefetch_chunk<false>(kernel.inputs.v, row, t + kChunk, key_head);
    const T* from = state;
    if (kernel.inputs.log_decay != nullptr) {
      const ChunkDecay<T> decay(kernel.inputs, row, t, n, key_head);
      from = std::copy_n(state, size, decayed_state) - size;
      keys = std::copy_n(keys, n * mp, decayed_keys) - n * mp;
      decay.scale_state(decayed_state, size);
      decay.scale_until_end(decayed_keys, mp);
    }
    T* next = state + size;
    add_product<T>(kernel.V, mp, n, {values, vp, true}, keys, mp, from, next, mp);
    // Rows of padded values, if any, stay zero.
    std::copy_n(from + kernel.V * mp, size - kernel.V * mp, next + kernel.V * mp);
    kernel.add_rows(n, keys, nullptr, next + vp * mp);
  }
}

// out[c, j] = feature c of key j [mp, kChunk], made of keys_transposed = phi(k)^T [kp, kChunk];
// returns out, or keys_transposed where features are phi(k).
template <typename T>
const T* transpose_features(const Kernel<T>& kernel, int64_t n, const FeatureTile<T>& keys,
                            const T* keys_transposed, T* out) {
  if (!kernel.reweighted) return keys_transposed;
  for (int64_t j = 0; j < chunked::padded(n); j += simd::kLanes<T>) {
    const simd::Vector<T> cosine = simd::load(keys.cosines + j), sine = simd::load(keys.sines + j);
    for (int64_t c = 0; c < kernel.kp; ++c) {
      const simd::Vector<T> values = simd::load(keys_transposed + c * kChunk + j);
      simd::store(out + c * kChunk + j, values * cosine);
      simd::store(out + (kernel.kp + c) * kChunk + j, values * sine);
    }
  }
  return out;
}

// dq, dk and dv of a block. `adjoint` is R^T [vp, mp] with its normalizer, after the block on
// entry, before it on return.
template <typename T>
void block_gradients(const Kernel<T>& kernel, int64_t row, int64_t begin, int64_t end,
                     int64_t key_head, const Outputs<T>& outputs, const BlockTiles<T>& tiles,
                     T* adjoint, Scratch<T> scratch, const LinearAttentionGradients<T>& gradients) {
  const int64_t kp = kernel.kp, mp = kernel.mp, vp = kernel.vp;
  T* adjoint_normalizer = adjoint + vp * mp;
  T* keys_transposed = scratch.take(kp * kChunk);
  T* features_transposed = scratch.take(mp * kChunk);
  T* values_transposed = scratch.take(vp * kChunk);
  const FeatureTile<T> queries = kernel.take_features(scratch);
  T* G = scratch.take(kChunk * vp);
  T* ddenominators = scratch.take(kChunk);
  T* weights = scratch.take(kChunk * kChunk);
  T* dweights = scratch.take(kChunk * kChunk);
  T* dqueries = scratch.take(kChunk * mp);
  T* dkeys = scratch.take(kChunk * mp);
  T* dvalues = scratch.take(kChunk * vp);
  T* dvalues_transposed = scratch.take(vp * kChunk);
  const bool angles_wanted =
      gradients.query_proportions != nullptr || gradients.key_proportions != nullptr;
  T* dquery_angles = angles_wanted ? scratch.take(kChunk) : nullptr;
  T* dkey_angles = angles_wanted ? scratch.take(kChunk) : nullptr;
  const int64_t chunks = (end - begin + kChunk - 1) / kChunk;
  for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
    const int64_t t = begin + chunk * kChunk, n = std::min(kChunk, end - t);
    const T* transposed = tiles.states + chunk * kernel.state_size();  // S^T, then z
    const FeatureTile<T> keys = kernel.from_token(tiles.keys, chunk * kChunk);
    const T* values = tiles.values + chunk * kChunk * vp;
    transpose_keys(kernel, n, keys, keys_transposed);
    chunked::transpose(values, vp, chunked::padded(n), vp, values_transposed, kChunk);
    prefetch_chunk<true>(gradients.k, row, t, key_head);
    prefetch_chunk<true>(gradients.v, row, t, key_head);
    tile_gemm<T>(n, mp, kernel.V, T(1), {values, vp}, {adjoint, mp}, Write::overwrite, dkeys, mp);
    for (int64_t i = 0; i < n; ++i) axpy_row(mp, T(1), adjoint_normalizer, dkeys + i * mp);
    if (chunk == 0) {
      prefetch_chunk<false>(kernel.inputs.k, row, t - kBlockTokens, key_head);
      prefetch_chunk<false>(kernel.inputs.v, row, t - kBlockTokens, key_head);
    }
    // (K R)^T = R^T K^T: transposing its few rows is less than transposing R.
    const T* features = transpose_features(kernel, n, keys, keys_transposed, features_transposed);
    tile_gemm<T>(vp, chunked::padded(n), kernel.m, T(1), {adjoint, mp}, {features, kChunk},
                 Write::overwrite, dvalues_transposed, kChunk);
    chunked::transpose(dvalues_transposed, kChunk, vp, chunked::padded(n), dvalues, vp);
    const ChunkDecay<T> decay(kernel.inputs, row, t, n, key_head);
    decay.scale_until_end(dkeys, mp);
    decay.scale_until_end(dvalues, vp);
    decay.scale_state(adjoint, kernel.state_size());
    if (angles_wanted) std::fill_n(dkey_angles, kChunk, T(0));
    kernel.fold_gradients(n, keys, dkeys, dkey_angles);
    for (int64_t h = key_head * kernel.group; h < (key_head + 1) * kernel.group; ++h) {
      kernel.load_features(Side::query, row, t, n, h, queries);
      kernel.load_output_gradients(row, t, n, h, outputs.y, outputs.denominators, outputs.dy, G,
                                   ddenominators);
      prefetch_chunk<true>(gradients.q, row, t, h);
      prefetch_chunk<false>(kernel.inputs.q, row, t - kChunk, h);
      lower_weights(kernel, n, queries, keys_transposed, weights);
      weight_gradients(kernel, n, G, ddenominators, values_transposed, dweights);
      decay.scale_lower(dweights);
      if (angles_wanted) {
        std::fill_n(dquery_angles, kChunk, T(0));
        add_angle_gradients(n, queries, keys, weights, dweights, dquery_angles, dkey_angles);
      }
      scale_by_angles(kernel, n, queries, keys, weights);
      scale_by_angles(kernel, n, queries, keys, dweights);
      decay.scale_lower(weights);
      prefetch_chunk<false>(outputs.y, row, t - kChunk, h);
      prefetch_chunk<false>(outputs.dy, row, t - kChunk, h);
      add_triangle_times<T>(n, vp, {weights, kChunk, true}, G, vp, dvalues, vp);
      add_triangle_times<T>(n, kp, {dweights, kChunk, true}, queries.plain, kp, dkeys, kp);
      tile_gemm<T>(n, mp, kernel.V, T(1), {G, vp}, {transposed, mp}, Write::overwrite, dqueries,
                   mp);
      for (int64_t i = 0; kernel.normalized && i < n; ++i) {
        axpy_row(mp, ddenominators[i], transposed + vp * mp, dqueries + i * mp);
      }
      decay.scale_since_start(dqueries, mp);
      kernel.fold_gradients(n, queries, dqueries, dquery_angles);
      add_triangle_times<T>(n, kp, {dweights, kChunk}, keys.plain, kp, dqueries, kp);
      if (gradients.log_decay != nullptr) {
        add_decay_gradients(kernel, row, t, n, key_head, T(-1), queries.plain, dqueries,
                            gradients.log_decay);
      }
      kernel.store_feature_gradients(Side::query, row, t, n, h, queries, dqueries, gradients.q);
      kernel.store_proportion_gradients(Side::query, row, t, n, h, dquery_angles,
                                        gradients.query_proportions);
      decay.scale_since_start(queries.features, mp);
      tile_gemm<T>(kernel.V, mp, n, T(1), {G, vp, true}, {queries.features, mp}, Write::accumulate,
                   adjoint, mp);
      kernel.add_rows(n, queries.features, ddenominators, adjoint_normalizer);
    }
    if (gradients.log_decay != nullptr) {
      add_decay_gradients(kernel, row, t, n, key_head, T(1), keys.plain, dkeys,
                          gradients.log_decay);
    }
    kernel.store_feature_gradients(Side::key, row, t, n, key_head, keys, dkeys, gradients.k);
    kernel.store_proportion_gradients(Side::key, row, t, n, key_head, dkey_angles,
                                      gradients.key_proportions);
    if (gradients.v) kernel.store_value_gradients(row, t, n, key_head, dvalues, gradients.v);
  }
}

// As scan_gradients.
template <typename T>
void chunk_gradients(const Causal<T>& call, const Split& split, int64_t key_head, const T* state,
                     const Outputs<T>& outputs, const T* kept, T* dstate, Scratch<T> scratch,
                     const LinearAttentionGradients<T>& gradients) {
  const Kernel<T>& kernel = call.kernel;
  const Span& span = call.spans[split.span];
  const int64_t mp = kernel.mp, vp = kernel.vp;
  const BlockTiles<T> tiles(kernel, scratch);
  T* adjoint = scratch.take(kernel.state_size());
  transpose_state(kernel, dstate, adjoint);
  const int64_t blocks = (split.end - split.begin + kBlockTokens - 1) / kBlockTokens;
  for (int64_t block = blocks - 1; block >= 0; --block) {
    const int64_t begin = split.begin + block * kBlockTokens;
    const int64_t end = std::min(split.end, begin + kBlockTokens);
    const T* first = begin == span.begin ? state : call.kept_at(kept, split.span, begin, key_head);
    transpose_state(kernel, first, tiles.states);
    make_block(kernel, span.row, begin, end, key_head, tiles, scratch.nested());
    block_gradients(kernel, span.row, begin, end, key_head, outputs, tiles, adjoint,
                    scratch.nested(), gradients);
  }
  chunked::transpose(adjoint, mp, vp, mp, dstate, vp);
  std::copy_n(adjoint + vp * mp, mp, dstate + mp * vp);
}

}  // namespace

template <typename T>
void linear_attention_causal_backward(
    const LinearAttentionOptions& options, const LinearAttentionInputs<T>& inputs,
    const std::vector<Span>& spans, LinearAttentionState<const T> state_in, SequenceView<const T> y,
    const T* denominators, const T* kept, SequenceView<const T> dy,
    LinearAttentionState<const T> dstate_out, LinearAttentionGradients<T> gradients,
    LinearAttentionState<T> dstate_in) {
  const Causal<T> call(options, inputs, spans);
  const Kernel<T>& kernel = call.kernel;
  const std::vector<Split>& splits = call.splits;
  const Outputs<T> outputs{y, denominators, dy};
  Partials<T> after(splits, kernel.key_heads, kernel.state_size());
  const bool summed_last = gradients.log_decay != nullptr && !inputs.channel_decay;
  if (summed_last) {
    std::fill_n(gradients.log_decay, inputs.k.B * inputs.k.T * kernel.key_heads, T(0));
  }
  if (after.needed()) {
    call.run([&](int64_t s, int64_t head) {
      if (splits[s].index == 0) return;
      add_queries(kernel, spans[splits[s].span].row, splits[s], head, outputs, after.at(s, head));
    });
  }
  call.run([&](int64_t s, int64_t head) {
    const Split& split = splits[s];
    const Span& span = spans[split.span];
    Scratch<T> scratch;
    T* state = scratch.take(kernel.state_size());
    T* dstate = scratch.take(kernel.state_size());
    kernel.load_state(span.carries_out ? dstate_out : LinearAttentionState<const T>{}, span.row,
                      head, dstate);
    if (split.count > 1) after.add_after(splits, s, head, dstate);
    kernel.load_state(span.carries_in ? state_in : LinearAttentionState<const T>{}, span.row, head,
                      state);
    const auto pass = scans(kernel) ? scan_gradients<T> : chunk_gradients<T>;
    pass(call, split, head, state, outputs, kept, dstate, scratch.nested(), gradients);
    if (split.index > 0) return;
    if (span.carries_in) kernel.store_state(dstate, dstate_in, span.row, head);
    if (!summed_last) return;
    sum_decay_gradients(span, inputs.key_mask, inputs.k.T, kernel.key_heads, head,
                        static_cast<double>(dot_row(state, dstate, kernel.state_size())),
                        gradients.log_decay);
  });
}

#define LINNET_INSTANTIATE(T)                                                                   \
  template void linear_attention_causal_backward<T>(                                            \
      const LinearAttentionOptions&, const LinearAttentionInputs<T>&, const std::vector<Span>&, \
      LinearAttentionState<const T>, SequenceView<const T>, const T*, const T*,                 \
      SequenceView<const T>, LinearAttentionState<const T>, LinearAttentionGradients<T>,        \
      LinearAttentionState<T>);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet
