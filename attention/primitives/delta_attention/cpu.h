// The delta rule on plain arrays of the CPU; internal to delta_attention. T: float or double.
#pragma once

#include <cstdint>
#include <vector>

#include "core/sequence_view.h"

namespace linnet::delta {

// log_decay, key_mask and state may be null.
template <typename T>
struct DeltaInputs {
  SequenceView<const T> q, k;    // [B,T,H,K]
  SequenceView<const T> v;       // [B,T,H,V]
  const T* beta = nullptr;       // [B,T,H]
  const T* log_decay = nullptr;  // [B,T,H]
  const uint8_t* key_mask = nullptr;
  const T* state = nullptr;  // [B,H,K,V]: what spans that carry in begin with
  double query_scale = 1;
};

// What forward keeps for backward.
template <typename T>
struct DeltaKept {
  T* corrections = nullptr;  // v_t - a_t S_{t-1}^T k_t, [B,T,H,V]
  T* states = nullptr;       // S before every block of tokens, kept_state_elements of them
};
template <typename T>
int64_t kept_state_elements(const DeltaInputs<T>& in, const std::vector<Span>& spans);

// Overwritten. log_decay and state may be null: not wanted.
template <typename T>
struct DeltaGradients {
  SequenceView<T> q, k, v;
  T *beta = nullptr, *log_decay = nullptr, *state = nullptr;
};

// y [B,T,H,V], last [B,H,K,V]. Members of `kept` are null where no backward follows.
template <typename T>
void delta_forward(const DeltaInputs<T>& in, const std::vector<Span>& spans, T* y, T* last,
                   const DeltaKept<T>& kept);
// The gradients of sum(y * dy) + sum(last * dlast); dlast may be null.
template <typename T>
void delta_backward(const DeltaInputs<T>& in, const std::vector<Span>& spans,
                    const DeltaKept<T>& kept, const T* y, const T* dy, const T* dlast,
                    const DeltaGradients<T>& to);

// The definition, token by token. For tests.
void delta_attention_reference(const DeltaInputs<double>& in, const std::vector<Span>& spans,
                               double* y, double* last);

}  // namespace linnet::delta
