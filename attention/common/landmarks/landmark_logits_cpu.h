// Logits of keys at landmarks on the CPU, as products of small tiles.
#pragma once

#include "attention/common/landmarks/landmark_rule.h"

namespace linnet::landmark_rule {

// logits [B,T,H,C] of `rule`.
template <typename T>
void write_logits(const Logits<T>& rule, T* logits);
// dk [B,T,H,K] and dw [B,H,C,K] from dlogits [B,T,H,C]; both are overwritten.
template <typename T>
void write_gradients(const Logits<T>& rule, const T* dlogits, T* dk, T* dw);

}  // namespace linnet::landmark_rule
