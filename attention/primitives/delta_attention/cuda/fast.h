// The delta rule on tensor cores, keys and values of up to 64 elements: a scan of the state
// forward, one of its gradient backward, and the gradients of every 64 tokens side by side.
// Internal to this folder; which calls come here is decided in path.h.
//
// With the names of ../chunk.h, in chunks of 32 tokens, of the heads' transposed states:
//   forward   X^T = (V^T - exp(s) (K S)^T) (I + P beta)^-T, Y^T = exp(s) (Q S)^T + X^T (W beta)^T
//             S'^T = exp(s_last) S^T + (exp(s_last - s) beta X)^T K
//   backward  dX^T = (exp(s_last - s) (K G)^T + dY^T W) (I + beta P)^-1
//             dS^T = exp(s_last) G^T + (exp(s) dY)^T Q - (exp(s) beta dX)^T K
// A block scans one head of one row. Of its eight warps four prepare the triangles of the next
// chunk from q and k, and invert the 16 x 16 squares on their diagonal; each of the others has 16
// values of the state in registers and needs nobody else's. The scans leave S before and G after
// every 64 tokens; what is left are products of 64 tokens alone (fast_gradients.cu).
//
// Bytes per token and head, K = V = 64: forward 512, and 256 for what backward reads; backward 640
// for the scan and 1,152 for the gradients. Multiply-adds: each scan 3 K V + 48 (K + V) (squares of
// triangles are whole), the gradients 3 K V + 80 V + 160 K.
#pragma once

#include "core/cuda/kernel.h"
#include "core/cuda/stored_values.h"
#include "core/sequence_view.h"

namespace linnet::cuda::delta_attention_fast {

using Reads = SequenceView<const kernel_bf16>;
using Writes = SequenceView<kernel_bf16>;

inline constexpr int kTile = 64;   // the most elements of a key or value; beyond a head's are zeros
inline constexpr int kGroup = 64;  // tokens between the states that scans leave

// What keys and values are multiplied by, [B,T,H], and which of them there are. Pointers may be
// null.
struct GateInputs {
  int64_t time = 0;
  int heads = 0;
  const float* log_decay = nullptr;
  StoredValues beta;
  const uint8_t* mask = nullptr;      // [B,T]
  const int32_t* segments = nullptr;  // [B,T]
};

// Forward: v -> y and X. Backward: dy -> what left_factor() says of dX.
struct Scan {
  GateInputs gates;
  bool decays = false;
  float query_scale = 1;
  Reads q, k, values;
  Writes y, corrections;          // empty: not wanted
  const float* in = nullptr;      // [B,H,K,V]; null: zeros
  float* out = nullptr;           // the same; null: not wanted
  kernel_bf16* states = nullptr;  // [B,H,groups,64,64], transposed; null: not wanted
};
void scan_forward(const Scan& scan);
void scan_backward(const Scan& scan);

struct TokenGradients {
  GateInputs gates;
  bool decays = false;
  float query_scale = 1;
  Reads q, k, dy, x, left;  // the last one is dv as the scan left it
  const kernel_bf16 *states = nullptr, *gradients = nullptr;  // as the scans left them
  Writes dq, dk, dv;
  StoredResults dbeta;
  float* dlog_decay = nullptr;  // null: not wanted
};
void token_gradients(const TokenGradients& call);

}  // namespace linnet::cuda::delta_attention_fast
