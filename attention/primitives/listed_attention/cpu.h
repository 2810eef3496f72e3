// Softmax attention over listed keys, on plain arrays: options, the reference, and the CPU kernels
// with their backward. attention/primitives/listed_attention/listed_attention.h has it on
// Variables.
#pragma once

#include <cstdint>

#include "core/random.h"
#include "core/sequence_view.h"

namespace linnet {

struct ListedAttentionOptions {
  double scale = 1.0;  // multiplies q . k before the bias is added
  // `group` queries after each other, 0 ... group - 1, group ... 2 group - 1, ..., share a list.
  int64_t group = 1;
  // Probability with which a weight is dropped (others are divided by 1 - dropout). The draw is a
  // function of (key, example, head, time of the query, place in the list) alone.
  double dropout = 0.0;
  RandomKey dropout_key;
};

// Inputs, none owned. H divides by G: query head h reads key/value head h / (H / G).
template <typename T>
struct ListedAttentionInputs {
  SequenceView<const T> q;     // [B,Tq,H,K]
  SequenceView<const T> k, v;  // [B,Tk,G,K], [B,Tk,G,V]
  // The keys of each list, [index_rows, index_heads, lists, length], index_rows = B or 1,
  // index_heads = H or 1, lists = ceil(Tq / group): numbers of keys, in any order. -1: an empty
  // place. A key that stands n times in a list counts n times.
  const int32_t* index = nullptr;
  int64_t index_rows = 1, index_heads = 1, lists = 0, length = 0;
  // Optional, added to the logit of a query and a place of its list:
  // [bias_rows, bias_heads, Tq, length], bias_rows = B or 1, bias_heads = H or 1. -infinity
  // excludes the place.
  const T* bias = nullptr;
  int64_t bias_rows = 1, bias_heads = 1;
  // 1 = valid; null: all. The contents of masked positions, NaN included, change nothing; a masked
  // query gives output 0, and so does a query without any valid key.
  const uint8_t* query_mask = nullptr;  // [B,Tq]
  const uint8_t* key_mask = nullptr;    // [B,Tk]
  // Names of the draws of dropout, as in BlockAttentionInputs.
  const int64_t* example_ids = nullptr;
  int64_t time_offset = 0;
};

// Gradients, overwritten, with the shapes of the inputs; dbias optional.
template <typename T>
struct ListedAttentionGradients {
  SequenceView<T> dq, dk, dv;
  T* dbias = nullptr;
};

// y [B,Tq,H,V] and log_sum_exp [B,Tq,H] of the logits (-infinity where no key is seen).
template <typename T>
void listed_attention_forward(const ListedAttentionInputs<T>& in,
                              const ListedAttentionOptions& options, SequenceView<T> y,
                              T* log_sum_exp);
// From forward's y and log_sum_exp, with gradients dy and, unless null, dlog_sum_exp of both.
template <typename T>
void listed_attention_backward(const ListedAttentionInputs<T>& in,
                               const ListedAttentionOptions& options, SequenceView<const T> y,
                               const T* log_sum_exp, SequenceView<const T> dy,
                               const T* dlog_sum_exp, const ListedAttentionGradients<T>& out);

// The literal equation, one query at a time. For tests.
void listed_attention_reference(const ListedAttentionInputs<double>& in,
                                const ListedAttentionOptions& options, SequenceView<double> y,
                                double* log_sum_exp);

// Throws Error, naming the disagreement, unless inputs and options fit together. A null index is
// one that cannot be read here.
template <typename T>
void check_listed_attention(const ListedAttentionInputs<T>& in,
                            const ListedAttentionOptions& options);

}  // namespace linnet
