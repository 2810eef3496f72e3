// Shared by forward and backward of causal linear attention: the tasks of a call, sums of keys.
// Internal to this folder.
#pragma once

#include <algorithm>
#include <vector>

#include "attention/primitives/common/simd.h"
#include "attention/primitives/linear_attention/decay.h"
#include "attention/primitives/linear_attention/tile.h"
#include "core/error.h"
#include "core/threads.h"

namespace linnet::linear_attention_detail {

using chunked::Scratch;
using chunked::Split;

// Tokens of a block: forward keeps the state between blocks of a span, backward recomputes those
// between the chunks of a block, as many as the cache of a core holds.
inline constexpr int64_t kBlockTokens = 8 * kChunk;

// One call; its tasks are (split, key head). Splits begin at multiples of kBlockTokens from the
// beginning of their span.
template <typename T>
struct Causal {
  Causal(const LinearAttentionOptions& options, const LinearAttentionInputs<T>& inputs,
         const std::vector<Span>& spans_in)
      : kernel(options, inputs, inputs.k.H, inputs.q.H, inputs.v.K),
        spans(spans_in),
        // Splits of a span add up only where nothing decays.
        splits(chunked::split_spans(spans, kernel.key_heads,
                                    inputs.log_decay == nullptr ? thread_count() : 1,
                                    kBlockTokens)),
        tasks(static_cast<int64_t>(splits.size()) * kernel.key_heads) {
    require(inputs.q.T == inputs.k.T, "linear_attention: causal attention of ", inputs.q.T,
            " queries over ", inputs.k.T, " keys; expected as many");
    for (const Span& span : spans) {
      first_kept.push_back(kept_states);
      kept_states += std::max<int64_t>(0, span.end - span.begin - 1) / kBlockTokens;
    }
  }

  Kernel<T> kernel;
  const std::vector<Span>& spans;
  std::vector<Split> splits;
  int64_t tasks;
  // Between blocks of all spans and before those of each, of one head.
  int64_t kept_states = 0;
  std::vector<int64_t> first_kept;

  // The state before token t of a span among all kept ones; t is on the edge of two blocks.
  template <typename E>
  E* kept_at(E* kept, int64_t span, int64_t t, int64_t key_head) const {
    const int64_t block = (t - spans[span].begin) / kBlockTokens;
    return kept +
           ((first_kept[span] + block - 1) * kernel.key_heads + key_head) * kernel.state_size();
  }

  template <typename Body>
  void run(const Body& body) const {
    chunked::run_tasks(tasks, kernel.work(spans), [&](int64_t task) {
      body(task / kernel.key_heads, task % kernel.key_heads);
    });
  }
};

// state += sum over a split's tokens of phi(k_j) v_j^T.
template <typename T>
void add_keys(const Kernel<T>& kernel, int64_t row, const Split& split, int64_t key_head,
              T* state) {
  Scratch<T> scratch;
  const FeatureTile<T> keys = kernel.take_features(scratch);
  T* values = scratch.take(kChunk * kernel.vp);
  for (int64_t t = split.begin; t < split.end; t += kChunk) {
    const int64_t n = std::min(kChunk, split.end - t);
    kernel.load_features(Side::key, row, t, n, key_head, keys);
    kernel.load_values(row, t, n, key_head, values);
    kernel.accumulate(n, keys.features, values, nullptr, state);
  }
}

// out[j, i] = phi(k_i)_j, [kp, kChunk].
template <typename T>
void transpose_keys(const Kernel<T>& kernel, int64_t n, const FeatureTile<T>& keys, T* out) {
  chunked::transpose(keys.plain, kernel.kp, chunked::padded(n), kernel.kp, out, kChunk);
}

// weights[i, j] = phi(q_i) . phi(k_j) for j <= i, as chunked::lower_product leaves them: half as
// deep as the product of re-weighted features, which scale_by_angles makes of it.
template <typename T>
void lower_weights(const Kernel<T>& kernel, int64_t n, const FeatureTile<T>& queries,
                   const T* keys_transposed, T* weights) {
  chunked::lower_product(n, kernel.K, queries.plain, kernel.kp, keys_transposed, kChunk, weights,
                         kChunk);
}

// Where re-weighted: weights[i, j] *= cos(theta_i - theta_j).
template <typename T>
void scale_by_angles(const Kernel<T>& kernel, int64_t n, const FeatureTile<T>& queries,
                     const FeatureTile<T>& keys, T* weights) {
  if (!kernel.reweighted) return;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; j += simd::kLanes<T>) {
      T* part = weights + i * kChunk + j;
      const simd::Vector<T> cosine = queries.cosines[i] * simd::load(keys.cosines + j) +
                                     queries.sines[i] * simd::load(keys.sines + j);
      simd::store(part, simd::load(part) * cosine);
    }
  }
}

// Further inputs of backward, made by forward.
template <typename T>
struct Outputs {
  SequenceView<const T> y;
  const T* denominators;
  SequenceView<const T> dy;
};

// Whether a call scans along the tokens with the state in registers (scan.cpp). Otherwise it goes
// from chunk to chunk: so decays per head act on whole tiles, and query heads that share a key head
// share its state. Factors of channels differ inside a tile's products, which chunks have no room
// for.
template <typename T>
bool scans(const Kernel<T>& kernel) {
  const auto& in = kernel.inputs;
  return in.channel_decay || (in.log_decay == nullptr && kernel.group == 1);
}
// Such a split forward: y, and where not null denominators and the states between blocks. `state`
// is the one before the split on entry, after it on return.
template <typename T>
void scan_outputs(const Causal<T>& call, const Split& split, int64_t key_head, T* state,
                  Scratch<T> scratch, SequenceView<T> y, T* denominators, T* kept);
// And backward: dq, dk and dv. `state` is the one before the span, dstate the gradient of the one
// after the split on entry, of the one before it on return.
template <typename T>
void scan_gradients(const Causal<T>& call, const Split& split, int64_t key_head, const T* state,
                    const Outputs<T>& outputs, const T* kept, T* dstate, Scratch<T> scratch,
                    const LinearAttentionGradients<T>& gradients);

// Prefetches the rows of a head in the chunk that begins with token t, while products are made.
template <bool kWrite, typename E>
void prefetch_chunk(const SequenceView<E>& view, int64_t row, int64_t t, int64_t head) {
  chunked::prefetch_rows<kWrite>(view, row, t, t + kChunk, head);
}

}  // namespace linnet::linear_attention_detail
