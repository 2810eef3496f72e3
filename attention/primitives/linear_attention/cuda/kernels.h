// Plain kernels of linear attention: one scan of a state over time, and the element-wise steps
// before and after it. Internal to this folder.
//
// A value has one more element, 1 (0 where masked), so that the state [m, V + 1] holds the memory S
// and, in its last column, the normalizer z; outputs then hold the numerators and, last, the
// denominator, and gradients of outputs that of the denominator. All arrays are f32 unless said
// otherwise.
#pragma once

#include "attention/primitives/linear_attention/cpu.h"
#include "core/tensor.h"

namespace linnet::cuda::linear_attention_detail {

// The most features that the kernels take, and the most rows of a state that a block of a scan
// keeps, its normalizer left out.
inline constexpr int64_t kWidestState = 256;

// A memory S [N,G,m,V] and its normalizer z [N,G,m]; undefined: zero on input, not wanted on
// output.
struct StateTensors {
  Tensor memory, mass;
};

// X <- factor_t X + left_t right_t^T along time, and out_t = X^T probe_t after it. X is the state,
// [m, V + 1] or its transpose. The factor is exp(log_decay_t); backward in time, where X is the
// gradient with respect to the state after t, that of the token after it.
// Hu heads write to the state, Hp read it, G keep it; of each two of them, one divides the other.
struct StateScan {
  Tensor left, right;  // [B,T,Hu,rows], [B,T,Hu,columns or more]; undefined: the state stays
  Tensor probe, out;   // [B,T,Hp,rows], [B,T,Hp,columns]; undefined: nothing is read
  StateTensors in, out_state;
  int64_t features = 0, values = 0;  // m and V
  int64_t columns = 0;               // of X that are computed
  int64_t state_heads = 0;           // G
  bool transposed = false;
  bool reverse = false;
  // i32 [B,T]: the state restarts where the id changes.
  Tensor segments;
  // [B,T,G], and whose entries count: u8 [B,T]. Undefined: factors of 1; all.
  Tensor log_decay, decay_mask;
  // i32 [N,3]: row, first and last + 1 token of the span that state n belongs to. Undefined: state
  // n is that of row n.
  Tensor spans;
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

// Spans for kernels, i32 [N,3]; undefined where each row is one (segments undefined).
Tensor spans_on_device(const Tensor& segments, const std::vector<Span>& spans, Device device);

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

// Inputs of the gradients of a log-decay: features and their gradients on both sides, the carried
// state and its gradient (undefined: no carried state).
struct DecayGradients {
  Tensor queries, dqueries;  // [B,T,H,m]
  Tensor keys, dkeys;        // [B,T,G,m]
  StateTensors state, dstate;
  Tensor segments, mask;  // i32, u8 [B,T]
  Tensor out;             // [B,T,G]
};
void run(const DecayGradients& gradients);

// The same from terms [B,T,G] of which the gradients are sums over earlier tokens, to which
// `anchors` [N,B,G] are the sums at every token that is a multiple of `anchor_tokens`, a multiple
// of 32. Undefined: none.
struct DecaySums {
  Tensor terms, anchors;
  int64_t anchor_tokens = 0;
  StateTensors state, dstate;
  Tensor segments, mask;
  Tensor out;
};
void run(const DecaySums& sums);

}  // namespace linnet::cuda::linear_attention_detail
