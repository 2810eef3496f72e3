// Attention over a pattern of keys, by softmax or unnormalised, on plain arrays: options, the
// reference, and the CPU kernels with their backward.
// attention/primitives/block_attention/block_attention.h has it on Variables.
#pragma once

#include <cstdint>
#include <vector>

#include "core/random.h"
#include "core/sequence_view.h"

namespace linnet {

// Which keys a query sees, by absolute position p of the query:
//   full    every key (causal: positions <= p)
//   band    positions p - left ... p + right (causal: right is ignored, keys end at p)
//   blocks  the block of `block` positions that holds p (causal: positions <= p inside it)
enum class BlockPattern : uint8_t { full, band, blocks };

// Weights as a function of the logits x of a query's keys:
//   softmax       exp(x) / sum of them over the keys that are seen
//   relu          max(x, 0)
//   relu_squared  max(x, 0)^2
//   laplace       (1 + erf((x - m) / (d sqrt 2))) / 2 with m = sqrt(1/2), d = sqrt(1 / 4 pi): near
//                 the square of relu, but bounded (Ma et al. 2022, Mega)
//   collision     (1 - arccos(x) / pi)^exponent for a cosine x, which is brought into [-1, 1]; its
//                 backward is the surrogate exponent / 2 * weight (Zeng et al. 2021, YOSO)
//   collision_exact  the same with its own derivative, which has no bound at 1: cosines must stay
//                 below
//   identity      x
//   exponential   exp(min(x, 0)), for logits that only rounding brings above 0, where its
//                 derivative is 0
// All but the first are not normalised; keys that are not seen weigh 0 in all.
enum class BlockWeights : uint8_t {
  softmax,
  relu,
  relu_squared,
  laplace,
  collision,
  collision_exact,
  identity,
  exponential
};

struct BlockAttentionOptions {
  BlockPattern pattern = BlockPattern::full;
  bool causal = false;
  int64_t left = 0, right = 0;
  int64_t block = 0;
  // Multiplies q . k before the bias is added.
  double scale = 1.0;
  BlockWeights weights = BlockWeights::softmax;
  double exponent = 1.0;  // of collision
  // Probability with which a weight is dropped (others are divided by 1 - dropout). The
  // draw is a function of (key, example, head, query time, key time) alone.
  double dropout = 0.0;
  RandomKey dropout_key;
};

// Inputs, none owned. H divides by G: query head h reads key/value head h / (H / G).
// Self-attention (spans not empty): Tk = Tq, and each span is a sequence of its own; the keys of a
// span that carries in are [past ; current], past key i standing at position start_position - P + i
// (positions below 0 are empty slots). Cross-attention (no spans): every query of a row sees every
// key of that row; only pattern full, not causal, without past.
template <typename T>
struct BlockAttentionInputs {
  SequenceView<const T> q;               // [B,Tq,H,K]
  SequenceView<const T> k, v;            // [B,Tk,G,K], [B,Tk,G,V]
  SequenceView<const T> past_k, past_v;  // [B,P,G,K], [B,P,G,V]; optional
  // 1 = valid; null: all. The contents of masked positions, NaN included, change nothing; a masked
  // query gives output 0, and so does a query without any valid key.
  const uint8_t* query_mask = nullptr;  // [B,Tq]
  const uint8_t* key_mask = nullptr;    // [B,Tk]
  const uint8_t* past_mask = nullptr;   // [B,P]
  // Optional [bias_heads, bias_count], bias_heads = H or 1: the logit of query position i and key
  // position j gains bias[h, j - i + bias_origin]. The table covers every distance that is seen.
  const T* bias = nullptr;
  int64_t bias_heads = 0, bias_count = 0, bias_origin = 0;
  // Names of the draws of dropout: numbers of the rows' examples [B] (null: the row number), and
  // the time of token 0 of the rows inside them, one for all or one each [B]. Time runs on across
  // documents, position does not.
  const int64_t* example_ids = nullptr;
  int64_t time_offset = 0;
  const int64_t* row_times = nullptr;
  std::vector<Span> spans;

  int64_t time_of(int64_t row) const { return row_times ? row_times[row] : time_offset; }
};

// Gradients, overwritten, with the shapes of the inputs; dpast_k, dpast_v, dbias optional.
template <typename T>
struct BlockAttentionGradients {
  SequenceView<T> dq, dk, dv, dpast_k, dpast_v;
  T* dbias = nullptr;
};

// y [B,Tq,H,V] and log_sum_exp [B,Tq,H] (of the logits; +infinity where y is 0 for want of keys; 0
// where weights are not normalised).
// O(Tq * visible keys) time, no array of that size. Bitwise the same for any number of threads.
// Throws Error on shapes or options that do not fit.
template <typename T>
void block_attention_forward(const BlockAttentionInputs<T>& in,
                             const BlockAttentionOptions& options, SequenceView<T> y,
                             T* log_sum_exp);

// The gradients of sum(y * dy), recomputing the weights from the saved log_sum_exp. Bitwise the
// same for a fixed number of threads.
template <typename T>
void block_attention_backward(const BlockAttentionInputs<T>& in,
                              const BlockAttentionOptions& options, SequenceView<const T> y,
                              const T* log_sum_exp, SequenceView<const T> dy,
                              const BlockAttentionGradients<T>& gradients);

// The literal equation, one query at a time, all logits of a query stored. For tests.
void block_attention_reference(const BlockAttentionInputs<double>& in,
                               const BlockAttentionOptions& options, SequenceView<double> y);

// Throws Error, naming the disagreement, unless inputs and options fit together.
template <typename T>
void check_block_attention(const BlockAttentionInputs<T>& in, const BlockAttentionOptions& options);

}  // namespace linnet
