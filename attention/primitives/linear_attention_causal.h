// What forward and backward of causal linear attention share: the tasks of a call, sums of keys.
// Internal to linear_attention*.cpp.
#pragma once

#include <algorithm>
#include <vector>

#include "attention/primitives/linear_attention_decay.h"
#include "attention/primitives/linear_attention_tile.h"
#include "core/error.h"
#include "core/threads.h"

namespace linnet::linear_attention_detail {

using chunked::Scratch;
using chunked::Segment;

// One call; its tasks are (segment, key head).
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

}  // namespace linnet::linear_attention_detail
