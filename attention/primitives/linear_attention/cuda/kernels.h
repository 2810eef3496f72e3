// Plain kernels of linear attention: one scan of a state over time, and the element-wise steps
// before and after it. Internal to this folder.
//
// A value has one more element, 1 (0 where masked), so that the state [m, V + 1] holds the memory S
// and, in its last column, the normalizer z; outputs then hold the numerators and, last, the
// denominator, and gradients of outputs that of the denominator. All arrays are f32 unless said
// otherwise.
#pragma once

#include "attention/primitives/linear_attention/cpu.h"
#include "core/cuda/kernel.h"

namespace linnet {
struct LinearAttentionTensors;
}

namespace linnet::cuda::linear_attention_detail {

// The most features that the kernels take, and the most rows of a state that a block of a scan
// keeps, its normalizer left out.
inline constexpr int64_t kWidestState = 256;

// X <- factor_t X + left_t right_t^T along time, and out_t = X^T probe_t after it. X is the state,
// [m, V + 1] or its transpose. The factor is exp(log_decay_t), with a decay per channel one for
// each feature; backward in time, where X is the gradient with respect to the state after t, that
// of the token after it. Hu heads write to the state, Hp read it, G keep it; of each two of them,
// one divides the other.
struct StateScan {
  const float* left = nullptr;   // [B,T,Hu,rows]
  const float* right = nullptr;  // [B,T,Hu,right_width]
  const float* probe = nullptr;  // [B,T,Hp,rows]; null: nothing is read
  float* out = nullptr;          // [B,T,Hp,columns]
  LinearAttentionState<const float> in;
  LinearAttentionState<float> out_state;
  int64_t states = 0, time = 0;  // N and T
  int features = 0, values = 0;  // m and V
  int rows = 0, columns = 0;     // of X; those columns that are computed
  int right_width = 0;           // at least as many
  int update_heads = 0;          // Hu; 0: the state stays
  int heads = 0;                 // Hp
  int state_heads = 0;           // G
  bool transposed = false;
  bool reverse = false;
  const int32_t* segments = nullptr;    // [B,T]: the state restarts where the id changes
  const float* log_decay = nullptr;     // [B,T,G] or [B,T,G,m]; null: factors of 1
  bool channel_decay = false;           // of log_decay: the latter
  const uint8_t* decay_mask = nullptr;  // [B,T], whose log-decays count; null: all
  // [N,3]: row, first and last + 1 token of the span that state n belongs to; null: row n.
  const int32_t* spans = nullptr;
};
// With more values than kWidestState, whose state is transposed, rows are processed in parts, one
// after the other, and their reads by probes are added up.
void run(const StateScan& scan);

// phi(scale x) of x [B,T,H,K], with the proportions' cosine and sine where defined: [B,T,H,m].
// Masked tokens are 0 and never looked at.
Tensor features(const Tensor& x, const Tensor& proportions, const Tensor& mask, FeatureMap map,
                double scale);
// From gradients of features [B,T,H,m] to those of x and of the proportions (undefined: not
// wanted).
void feature_gradients(const Tensor& x, const Tensor& proportions, const Tensor& mask,
                       FeatureMap map, double scale, const Tensor& gradients, const Tensor& dx,
                       const Tensor& dproportions);

// The spans of a noncausal call for kernels, i32 [N,3]; undefined where each row is one.
Tensor spans_on_device(const LinearAttentionTensors& in);

// v [B,T,G,V] with a column of ones: [B,T,G,V+1].
Tensor values_with_normalizer(const Tensor& v, const Tensor& mask);
// dv = gradients [B,T,G,V] in the dtype of v, 0 where masked.
void value_gradients(const Tensor& gradients, const Tensor& mask, const Tensor& dv);

// y = numerators / D(denominator) from sums [B,T,H,V+1]; the denominators [B,T,H] are kept.
void normalize(const Tensor& sums, const Tensor& mask, const LinearAttentionOptions& options,
               const Tensor& y, const Tensor& denominators);
// dy / D and the gradient of the denominator: [B,T,H,V+1].
Tensor output_gradients(const Tensor& y, const Tensor& dy, const Tensor& denominators,
                        const Tensor& mask, const LinearAttentionOptions& options);

// phi(k_t) . dphi(k_t) less the sum over the query heads of phi(q_t) . dphi(q_t), [B,T,G], from
// features and their gradients on both sides; `of_channels` leaves the products' terms apart,
// [B,T,G,m].
Tensor decay_terms(const Tensor& queries, const Tensor& dqueries, const Tensor& keys,
                   const Tensor& dkeys, bool of_channels = false);
// gradients.log_decay from such terms, of which they are sums over earlier tokens. `anchors`
// [N,B,G] are the sums at every token that is a multiple of `anchor_tokens`, a multiple of 32;
// undefined: none. The gradients of the carried state must be there.
void decay_gradients(const LinearAttentionTensors& in, const LinearAttentionTensors& gradients,
                     const Tensor& terms, const Tensor& anchors = {}, int64_t anchor_tokens = 0);

}  // namespace linnet::cuda::linear_attention_detail
