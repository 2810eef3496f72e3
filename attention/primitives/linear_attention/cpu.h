// CPU kernels of linear attention: y_i = phi(q_i) S_i / D(phi(q_i) . z_i) with S = sum_j phi(k_j)
// v_j^T and z = sum_j phi(k_j), causal (sums over j <= i, with a carried state) or over a memory
// that was computed once (noncausal, cross). Katharopoulos et al. 2020; cosFormer (Qin et al. 2022)
// and LeaPformer re-weighting.
//
// Causal states may decay: S_t = exp(g_t) S_{t-1} + phi(k_t) v_t^T and z likewise, with a log-decay
// g_t <= 0 for every token and key head (gated random features, running maxima), or for each of its
// channels: S_t = diag(exp(g_t)) S_{t-1} + phi(k_t) v_t^T (gated linear attention, Yang et al.
// 2023).
//
// Shapes: q [B,Tq,H,K], k [B,Tk,G,K], v [B,Tk,G,V], y [B,Tq,H,V], where G divides H and head h
// reads key head h / (H / G). The feature width m is K, or 2K with re-weighting. Arrays in host
// memory, float or double (sums are made in that type); nothing is kept after a call. Outputs and
// gradients are overwritten. Bitwise repeatable for a fixed number of threads. Causal forward
// leaves a state for every 256 tokens to backward, where one follows; scratch is independent of T.
//
// Masks are [B,T] with 1 = valid, or null. Masked keys add nothing, masked queries get y = 0, both
// get zero gradients, and the contents of masked positions are never looked at.
#pragma once

#include <cstdint>
#include <vector>

#include "core/sequence_view.h"

namespace linnet {

// phi, element by element; elu1(x) = x + 1 for x > 0, exp(x) otherwise; elu(x) = elu1(x) - 1.
enum class FeatureMap : uint8_t { identity, elu1, relu, elu };

// The denominator D(x): 1, max(x, epsilon), x + epsilon. Where max takes epsilon, no gradient
// passes through the denominator.
enum class Normalizer : uint8_t { none, clamp, add };

struct LinearAttentionOptions {
  FeatureMap feature_map = FeatureMap::elu1;
  // Multiplies q before the feature map.
  double query_scale = 1;
  Normalizer normalizer = Normalizer::clamp;
  // In the type of the sums, > 0 unless normalizer is none.
  double epsilon = 1e-6;
};

// Inputs. Forms that need only keys or only queries leave the others empty. Re-weighting: with
// proportions P in [0,1], one per token and head, phi(x) becomes
//   [phi(x) cos(pi P / 2), phi(x) sin(pi P / 2)],
// so that weights are multiplied by cos(pi (P_q,i - P_k,j) / 2). Both are given or neither. The
// log-decay (natural logarithm, causal only) of a masked key counts as 0.
template <typename T>
struct LinearAttentionInputs {
  SequenceView<const T> q, k, v;
  const T* query_proportions = nullptr;  // [B,Tq,H]
  const T* key_proportions = nullptr;    // [B,Tk,G]
  const T* log_decay = nullptr;          // [B,Tk,G] or [B,Tk,G,K], at most 0
  const uint8_t* query_mask = nullptr;   // [B,Tq]
  const uint8_t* key_mask = nullptr;     // [B,Tk]
  bool channel_decay = false;            // log_decay has K channels; not with proportions
};

// S [N,G,m,V] and z [N,G,m], dense; E is T or const T. N is B for carried states, and the number
// of spans for memories. Null pointers: zero on input, not wanted on output.
template <typename E>
struct LinearAttentionState {
  E* memory = nullptr;
  E* mass = nullptr;
};

// Where gradients go; null: not wanted. dq, dk, dv have the shapes of q, k, v.
template <typename T>
struct LinearAttentionGradients {
  SequenceView<T> q, k, v;
  T* query_proportions = nullptr;
  T* key_proportions = nullptr;
  T* log_decay = nullptr;
};

// Causal. Spans cover all rows; spans that carry in continue state_in of their row, spans that
// carry out write state_out, which does not overlap state_in. Spans whose state decays are not
// split among threads. For backward (null unless needed): denominators [B,T,H] receives x of D(x),
// and `kept`, of linear_attention_kept_elements, the states inside spans. Throws Error where shapes
// disagree or epsilon is not positive.
template <typename T>
void linear_attention_causal_forward(const LinearAttentionOptions& options,
                                     const LinearAttentionInputs<T>& inputs,
                                     const std::vector<Span>& spans,
                                     LinearAttentionState<const T> state_in,
                                     LinearAttentionState<T> state_out, SequenceView<T> y,
                                     T* denominators, T* kept = nullptr);
// y, denominators and `kept` as forward left them; dstate_out may be null (zero). dstate_in is
// written for rows whose first span carries in.
template <typename T>
void linear_attention_causal_backward(
    const LinearAttentionOptions& options, const LinearAttentionInputs<T>& inputs,
    const std::vector<Span>& spans, LinearAttentionState<const T> state_in, SequenceView<const T> y,
    const T* denominators, const T* kept, SequenceView<const T> dy,
    LinearAttentionState<const T> dstate_out, LinearAttentionGradients<T> gradients,
    LinearAttentionState<T> dstate_in);
template <typename T>
int64_t linear_attention_kept_elements(const LinearAttentionOptions& options,
                                       const LinearAttentionInputs<T>& inputs,
                                       const std::vector<Span>& spans);

// Noncausal and cross: memory number n is the sum over the keys of span n.
template <typename T>
void linear_attention_memory_forward(const LinearAttentionOptions& options,
                                     const LinearAttentionInputs<T>& inputs,
                                     const std::vector<Span>& key_spans,
                                     LinearAttentionState<T> memory);
template <typename T>
void linear_attention_memory_backward(const LinearAttentionOptions& options,
                                      const LinearAttentionInputs<T>& inputs,
                                      const std::vector<Span>& key_spans,
                                      LinearAttentionState<const T> dmemory,
                                      LinearAttentionGradients<T> gradients);
// The queries of span n read memory n.
template <typename T>
void linear_attention_read_forward(const LinearAttentionOptions& options,
                                   const LinearAttentionInputs<T>& inputs,
                                   const std::vector<Span>& query_spans, int64_t key_heads,
                                   LinearAttentionState<const T> memory, SequenceView<T> y,
                                   T* denominators);
template <typename T>
void linear_attention_read_backward(const LinearAttentionOptions& options,
                                    const LinearAttentionInputs<T>& inputs,
                                    const std::vector<Span>& query_spans, int64_t key_heads,
                                    LinearAttentionState<const T> memory, SequenceView<const T> y,
                                    const T* denominators, SequenceView<const T> dy,
                                    LinearAttentionGradients<T> gradients,
                                    LinearAttentionState<T> dmemory);

// The definition in double: y_i = sum_j A_ij v_j / D(sum_j A_ij), A_ij = phi(q_i) . phi(k_j)
// cos(pi (P_q,i - P_k,j) / 2) exp(g_{j+1} + ... + g_i) over valid j (j <= i where causal) in the
// same span, plus the decayed carried state; with a log-decay per channel the factor is inside the
// sum over channels. Key span n serves query span n. For tests.
void linear_attention_reference(const LinearAttentionOptions& options,
                                const LinearAttentionInputs<double>& inputs, bool causal,
                                const std::vector<Span>& query_spans,
                                const std::vector<Span>& key_spans,
                                LinearAttentionState<const double> state_in,
                                LinearAttentionState<double> state_out, SequenceView<double> y);

}  // namespace linnet
