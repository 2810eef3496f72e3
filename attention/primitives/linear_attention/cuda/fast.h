// Linear attention on tensor cores: one pass along time for y, two for the gradients; states stay
// in registers and shared memory. Noncausal: a pass that sums over keys, one that reads, and one
// for the gradients of each. Internal to this folder; which calls come here is decided in path.h.
//
// q, k, v, dy and gradients are bf16 views, whose rows begin on 16 bytes; features, which are made
// from q, k and proportions on the chip, and weights inside a chunk are rounded to bf16 for the
// products, as is the copy of the state that queries read; all sums, the state itself, its
// normalizer, the denominators and the gradients of proportions are f32. Masks and states as in
// ../cpu.h, [B,T], S [B,G,m,V] and z [B,G,m]; pointers may be null.
#pragma once

#include "attention/primitives/linear_attention/cuda/features.h"
#include "attention/tensor_core/splits.h"
#include "core/cuda/kernel.h"

namespace linnet::cuda::linear_attention_fast {

using linear_attention_detail::Division;
using linear_attention_detail::FeatureSource;

using Reads = SequenceView<const kernel_bf16>;
using Writes = SequenceView<kernel_bf16>;

// Whether there are kernels for this width of features (twice that of re-weighted heads) and of
// values. Their tiles are 16, 32, 64 or 128 wide (noncausal: 64 or 128); widths between are
// computed as the next wider one, wider features as two parts, wider values as several.
inline bool has_kernels(int64_t features, int64_t values) {
  return features > 0 && features <= 256 && features % 8 == 0 && values > 0 && values % 8 == 0;
}
inline constexpr int64_t kMaxDecayingFeatures = 128;
// Bytes that a block of causal passes and of the noncausal backward pass takes. (The other kernels
// take no more than 93 KiB, which every GPU with bf16 has.)
size_t causal_shared_memory(int64_t features);
size_t causal_backward_shared_memory(int64_t features, int64_t values);
size_t noncausal_backward_shared_memory(int64_t features, int64_t values);

// Which tokens have a state in noncausal forms: `count` spans, i32 [count,3] of row, first and last
// + 1 token, that cover all rows; none: each row.
struct Spans {
  const int32_t* table = nullptr;
  int64_t count = 0, longest = 0;

  int64_t states(int64_t rows) const { return table == nullptr ? rows : count; }
  int64_t most_tokens(int64_t time) const { return table == nullptr ? time : longest; }
};

// A call, as kernels take it. Launches that compute a part of it take a copy with other views,
// states or denominators.
struct Forward {
  Device device;  // of the arrays
  Reads q, k, v;
  // These, and key_heads, set_features() makes.
  FeatureSource queries{}, keys{};
  Division division{};
  const uint8_t* query_mask = nullptr;
  const uint8_t* key_mask = nullptr;
  const int32_t* segments = nullptr;  // [B,T], causal; a sequence that has them is not split
  const float* log_decay = nullptr;   // [B,T,G], causal, up to 128 features; not split either
  LinearAttentionState<const float> state_in;
  LinearAttentionState<float> state_out;
  Writes y;
  float* denominators = nullptr;  // [B,T,H]; null where nothing is divided
  int64_t key_heads = 0;          // G
  Spans spans;

  // After the views. Proportions are [B,T,H] and [B,T,G]; null: there are none.
  void set_features(const LinearAttentionOptions& options, const float* query_proportions = nullptr,
                    const float* key_proportions = nullptr) {
    queries = {options.feature_map, static_cast<float>(options.query_scale), query_proportions,
               static_cast<int>(q.K)};
    keys = {options.feature_map, 1, key_proportions, static_cast<int>(k.K)};
    division = linear_attention_detail::division_of(options);
    key_heads = k.H;
  }
  // Throw Error where features are not those of the view: set_features() was not called after it.
  void check_queries(const char* function) const { check(function, "q", queries, q); }
  void check_keys(const char* function) const { check(function, "k", keys, k); }

 private:
  static void check(const char* function, const char* name, const FeatureSource& source,
                    const Reads& view) {
    require(source.width == view.K, "linear_attention: ", function, " expected features of the ",
            view.K, " columns of ", name, ", got ", source.width);
  }
};
void causal_forward(const Forward& call);
// state_out from k and v alone.
void memory_forward(const Forward& call);
// y and the denominators from q, state_in and key_heads alone.
void read_forward(const Forward& call);

using tensor_core::kMultiprocessors;
using tensor_core::SplitSizes;
inline constexpr int64_t kSlots = 2 * kMultiprocessors;
// Splits, each for blocks of its own and none shorter than a few chunks: as many as let `blocks`
// blocks a split end soonest on a GPU that runs `slots` at once. A pass that makes the states of
// splits takes `state_eighths` eighths of the pass that they are for.
SplitSizes split_sizes(int64_t tokens, int64_t blocks, int64_t slots = kSlots,
                       int64_t state_eighths = 1);

// How a sequence is split where its heads alone, of which `blocks` blocks would be made, do not
// fill a GPU, and with what state each split begins, [count * B,G,m,V] and [count * B,G,m]. One
// split: nothing is computed.
struct Splits {
  SplitSizes sizes;
  Tensor memory, mass;

  // Those states; for a single split the carried one.
  LinearAttentionState<const float> states(const LinearAttentionState<const float>& carried) const;
};
// S and z before each split. Segments forget the splits before them: they are not split.
Splits splits_of(const Forward& call, int64_t blocks, int64_t slots = kSlots,
                 int64_t state_eighths = 1);

// Where blocks leave `count` parts of sums S and z of this shape [B,G,m,V], which are then added up
// in order. One part is the sum itself.
class Partials {
 public:
  Partials(int64_t count, const Shape& shape, Device device);
  // Part n follows part n - 1.
  LinearAttentionState<float> place(const LinearAttentionState<float>& total) const;
  void add_to(const LinearAttentionState<float>& total) const;

 private:
  int64_t count_;
  Tensor memory_, mass_;
};

// Outputs of the backward passes from which gradients of log-decays are made; null: not wanted. The
// gradient of g_t is the sum of weights times their gradients over all pairs of a query from t on
// and a key before t. With a term of each token s, its key's terms to later queries less its
// query's terms from earlier keys, it is that of an earlier token plus the terms between. Pairs
// inside a chunk are weighed once and in f32 for both, so that equal terms cancel; rounding remains
// of pairs of different chunks, 2^-9 of each, and anchors end its sum: every 512 tokens the
// gradient is S . dS + z . dz itself.
inline constexpr int64_t kDecayAnchorTokens = 512;
struct DecayWrites {
  float* terms = nullptr;    // [B,T,G]
  float* anchors = nullptr;  // [anchors of T tokens,B,G], of tokens 512, 1024, ...
  float* read = nullptr;     // scratch [B,T,H]: queries' terms from chunks before their own
  LinearAttentionState<float> states;  // scratch [anchors * B,G,m,V]: S and z there
};

// Gradients of the forward passes, with the denominators that they wrote; y and state_out are not
// looked at.
struct Backward : Forward {
  Reads dy;
  DecayWrites decay_writes;
  LinearAttentionState<const float> dstate_out;
  float* corrections = nullptr;  // [B,T,H], scratch of causal_backward
  Writes dq, dk, dv;
  float* dquery_proportions = nullptr;  // null: not wanted
  float* dkey_proportions = nullptr;
  LinearAttentionState<float> dstate_in;
};
void causal_backward(const Backward& call);
// The gradients of S and z after each split; the corrections of all queries must be there.
Splits gradient_splits_of(const Backward& call, int64_t blocks);
// dk and dv from k, v and dstate_out alone.
void memory_backward(const Backward& call);
// dq and dstate_in from q, dy, state_in, the denominators and key_heads alone.
void read_backward(const Backward& call);

}  // namespace linnet::cuda::linear_attention_fast
