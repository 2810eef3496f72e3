// Causal linear attention whose state decays per channel, on tensor cores: S_t = diag(exp(g_t))
// S_{t-1} + k_t v_t^T, y_t = S_t^T (scale q_t). Internal to this folder; which calls come here is
// decided in path.h.
//
// Heads of up to 64 features and as many values, in multiples of 8, are padded to tiles of 64;
// features are q and k themselves, nothing is divided, and every query head has a key head of its
// own. Masks, segments and carried states are those of fast.h; log_decay is [B,T,H,K], and its rows
// begin on 16 bytes.
#pragma once

#include "attention/primitives/linear_attention/cuda/fast.h"

namespace linnet::cuda::linear_attention_fast {

inline constexpr int64_t kMaxChannels = 64;  // features, and values, of a head

// Bytes of shared memory that a block of these passes takes at most.
size_t channel_shared_memory();

// y and state_out.
void channel_forward(const Forward& call);
// Gradients, of log-decays [B,T,H,K] too unless null; the states of the call as in fast.h.
void channel_backward(const Backward& call, float* dlog_decay);

}  // namespace linnet::cuda::linear_attention_fast
