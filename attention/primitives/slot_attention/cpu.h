// CPU kernels of attention over a bounded memory of N slots (ABC, Peng et al. 2022): slot l holds
// K~_l = sum_j w_jl k_j and V~_l = sum_j w_jl v_j; a query reads o = sum_l softmax_l(scale q.K~_l)
// V~_l. The weights w come from control logits a_jl.
//
// Shapes: q, k [B,T,H,K], v [B,T,H,V], logits [B,T,H,N], o [B,Tq,H,V]; float or double in host
// memory, nothing is kept after a call. Outputs and gradients are overwritten. Bitwise repeatable
// for a fixed number of threads. Causal backward uses 3 T N values of scratch for every head that
// is being worked on (for all heads where few rows are split among many threads); everything else
// is independent of T.
//
// Masks are [B,T] with 1 = valid, or null. Masked keys are not written, masked queries get o = 0,
// both get zero gradients, and the contents of masked positions are never looked at.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "core/random.h"
#include "core/sequence_view.h"

namespace linnet {

// alpha(a), how much of a token goes into a slot: exp(a), sigmoid(a), relu(a), or a itself.
enum class SlotControl : uint8_t { exp, sigmoid, relu, given };

// read_time: w_jl = alpha_jl / sum_{i <= t} alpha_il for the reader t, a mean over the tokens so
// far (for exp in log space: exact for logits of any size). none: w = alpha, a sum. Write-time
// normalisation (the paper's footnote 5) is `given` and `none` with slot_write_weights.
enum class SlotNormalizer : uint8_t { read_time, none };

struct SlotAttentionOptions {
  SlotControl control = SlotControl::exp;  // exp needs read_time
  SlotNormalizer normalizer = SlotNormalizer::read_time;
  // Multiplies q . K~.
  double scale = 1;
  // Slots never written (their weights all zero) are left out of the read; otherwise they are a
  // zero key and value that takes softmax weight.
  bool mask_empty = true;
  // Sums of sigmoid, relu and given weights are divided by at least this; no gradient passes then.
  double floor = 1e-6;
  // Probability with which a slot's weight in a read is dropped (others are divided by
  // 1 - dropout): the weights [H N] of a token are one row of dropout_row().
  double dropout = 0;
  RandomKey dropout_key;
};

template <typename T>
struct SlotAttentionInputs {
  SequenceView<const T> q, k, v, logits;
  const uint8_t* query_mask = nullptr;  // [B,Tq]
  const uint8_t* key_mask = nullptr;    // [B,Tk]
  // Causal, with `given` and `none`: the logits by which values are written, where they are not
  // `logits`. Slots count as used where keys are written.
  SequenceView<const T> value_logits;
  // Names of the draws of dropout: numbers of the rows' examples [B] (null: the row number), and
  // the time of query 0 of the rows inside them.
  const int64_t* examples = nullptr;
  int64_t time_offset = 0;
};

// keys [M,H,N,K], values [M,H,N,V], mass [M,H,N], dense; E is T or const T. M is B for carried
// states, the number of spans for memories. Contents:
//   exp: the means K~, V~, and log sum alpha (-infinity: empty slot);
//   sigmoid, relu and given with read_time: sums of alpha k, alpha v, and of alpha;
//   none: the sums, and the sum of |alpha|, which only tells used slots from empty ones.
// Mass is always double. Null pointers: an empty memory on input, not wanted on output.
template <typename E>
struct SlotAttentionState {
  using Mass = std::conditional_t<std::is_const_v<E>, const double, double>;
  E* keys = nullptr;
  E* values = nullptr;
  Mass* mass = nullptr;
};

// Where gradients go; null: not wanted.
template <typename T>
struct SlotAttentionGradients {
  SequenceView<T> q, k, v, logits, value_logits;
};

// Causal: token t reads the writes of tokens <= t of its span. Spans that carry in continue
// state_in of their row, spans that carry out write state_out (which does not overlap state_in).
// Throws Error where shapes or options do not fit. read_logits [B,T,H,N] (null: not wanted), an
// input of backward: scale q . K~ of every token's read.
template <typename T>
void slot_attention_causal_forward(const SlotAttentionOptions& options,
                                   const SlotAttentionInputs<T>& inputs,
                                   const std::vector<Span>& spans,
                                   SlotAttentionState<const T> state_in,
                                   SlotAttentionState<T> state_out, SequenceView<T> o,
                                   SequenceView<T> read_logits);
// dstate_out may be null (zero); dstate_in is written for rows whose first span carries in. With
// normalizer none, mass has no gradient.
template <typename T>
void slot_attention_causal_backward(
    const SlotAttentionOptions& options, const SlotAttentionInputs<T>& inputs,
    const std::vector<Span>& spans, SlotAttentionState<const T> state_in, SequenceView<const T> d_o,
    SequenceView<const T> read_logits, SlotAttentionState<const T> dstate_out,
    SlotAttentionGradients<T> gradients, SlotAttentionState<T> dstate_in);

// Noncausal and cross: memory number n holds the writes of the keys of span n.
template <typename T>
void slot_attention_memory_forward(const SlotAttentionOptions& options,
                                   const SlotAttentionInputs<T>& inputs,
                                   const std::vector<Span>& key_spans,
                                   SlotAttentionState<T> memory);
// memory as forward left it.
template <typename T>
void slot_attention_memory_backward(const SlotAttentionOptions& options,
                                    const SlotAttentionInputs<T>& inputs,
                                    const std::vector<Span>& key_spans,
                                    SlotAttentionState<const T> memory,
                                    SlotAttentionState<const T> dmemory,
                                    SlotAttentionGradients<T> gradients);
// The queries of span n read memory n of `slots` slots.
template <typename T>
void slot_attention_read_forward(const SlotAttentionOptions& options,
                                 const SlotAttentionInputs<T>& inputs,
                                 const std::vector<Span>& query_spans, int64_t slots,
                                 SlotAttentionState<const T> memory, SequenceView<T> o);
template <typename T>
void slot_attention_read_backward(const SlotAttentionOptions& options,
                                  const SlotAttentionInputs<T>& inputs,
                                  const std::vector<Span>& query_spans, int64_t slots,
                                  SlotAttentionState<const T> memory, SequenceView<const T> d_o,
                                  SlotAttentionGradients<T> gradients,
                                  SlotAttentionState<T> dmemory);

// Write-time normalisation: weights[t] = alpha_t / sum_{j <= t} alpha_j, per slot, over the valid
// tokens of the span and the carried normalizer [B,H,N] (log sum for exp, sum otherwise; null:
// nothing). Masked tokens get 0. options.control is exp, sigmoid or relu; options.normalizer is not
// looked at. Backward uses 2 T N values of scratch for every head in work.
template <typename T>
void slot_write_weights_forward(const SlotAttentionOptions& options, SequenceView<const T> logits,
                                const uint8_t* key_mask, const std::vector<Span>& spans,
                                const double* mass_in, double* mass_out, SequenceView<T> weights);
template <typename T>
void slot_write_weights_backward(const SlotAttentionOptions& options, SequenceView<const T> logits,
                                 const uint8_t* key_mask, const std::vector<Span>& spans,
                                 const double* mass_in, SequenceView<const T> dweights,
                                 const double* dmass_out, SequenceView<T> dlogits,
                                 double* dmass_in);

// Throws Error, naming the disagreement, unless options and the inputs that are there fit the
// sizes.
template <typename T>
void check_slot_attention(const SlotAttentionOptions& options, const SlotAttentionInputs<T>& inputs,
                          int64_t H, int64_t N, int64_t K, int64_t V);

// The definition in double, by plain loops over (reader, slot, writer). write_time selects the
// paper's footnote 5 (options.normalizer is then not looked at). Key span n serves query span n.
// For tests.
void slot_attention_reference(const SlotAttentionOptions& options, bool write_time,
                              const SlotAttentionInputs<double>& inputs, bool causal,
                              const std::vector<Span>& query_spans,
                              const std::vector<Span>& key_spans,
                              SlotAttentionState<const double> state_in, SequenceView<double> o);

}  // namespace linnet
