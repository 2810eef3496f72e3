// The one place that chooses between the kernels of the delta rule, and what goes to those on
// tensor cores.
#include "attention/primitives/delta_attention/cuda/path.h"

#include <string>

#include "attention/primitives/common/cuda/kernel_path.h"
#include "attention/primitives/delta_attention/cuda/fast.h"
#include "attention/tensor_core/aligned_views.h"
#include "core/error.h"
#include "core/kernel_choice.h"

namespace linnet::cuda {
namespace {

using namespace delta_attention_fast;

constexpr const char* kOperation = "delta attention";

std::string unsupported_sizes(const Tensor& q, int64_t V) {
  const int64_t K = q.size(3);
  if (K > kTile || V > kTile || K % 8 != 0 || V % 8 != 0 || K == 0 || V == 0) {
    return concat("keys of ", K, " and values of ", V, " elements");
  }
  // The grid has the rows, and of the gradients the groups of tokens, in dimensions of 16 bits.
  constexpr int64_t kLargestGrid = 65535;
  if (q.size(0) > kLargestGrid) return concat(q.size(0), " rows");
  if (q.size(1) > kLargestGrid * kGroup) return concat(q.size(1), " tokens");
  return {};
}

std::string why_plain(const DeltaAttentionTensors& in) {
  if (std::string reason = unsupported_sizes(in.q, in.v.size(3)); !reason.empty()) return reason;
  if (std::string reason = unsupported_dtype({&in.q, &in.k, &in.v}); !reason.empty()) return reason;
  return unsupported_alignment({&in.q, &in.k, &in.v});
}

GateInputs gates_of(const DeltaAttentionTensors& in) {
  return {in.q.size(1),
          static_cast<int>(in.q.size(2)),
          pointer_or_null<const float>(in.log_decay),
          stored_values(in.beta),
          pointer_or_null<const uint8_t>(in.context.key_mask),
          pointer_or_null<const int32_t>(in.context.segments)};
}

// The part of a call that its passes share.
template <typename Call>
Call call_of(const DeltaAttentionTensors& in) {
  Call call;
  call.gates = gates_of(in);
  call.decays = in.log_decay.defined() || in.context.segments.defined();
  call.query_scale = static_cast<float>(in.context.query_scale);
  call.q = view_of<const kernel_bf16>(in.q);
  call.k = view_of<const kernel_bf16>(in.k);
  return call;
}

// Room for a state before, or a gradient after, every group of tokens.
Tensor states_for(const DeltaAttentionTensors& in) {
  const int64_t groups = (in.q.size(1) + kGroup - 1) / kGroup;
  return Tensor::empty({in.q.size(0), in.q.size(2), groups, kTile, kTile}, DType::bf16,
                       in.q.device());
}

}  // namespace

bool delta_attention_is_fast(const DeltaAttentionTensors& in) {
  return takes_fast_kernels(kOperation, in.q, [&] { return why_plain(in); });
}

bool delta_attention_takes_rounded(const Tensor& q, int64_t values) {
  if (kernel_choice() == KernelChoice::plain || q.size(1) < kMinTensorCoreTokens) return false;
  const std::string reason = unsupported_sizes(q, values);
  if (reason.empty()) return true;
  use_plain_kernels(kOperation, reason);
  return false;
}

DeltaAttentionSaved fast_delta_attention_forward(const DeltaAttentionTensors& in,
                                                 const Tensor& last, bool keeps) {
  DeltaAttentionSaved saved;
  saved.fast = true;
  saved.y = Tensor::empty(in.v.shape(), DType::bf16, last.device());
  if (keeps) {
    saved.corrections = Tensor::empty(in.v.shape(), DType::bf16, last.device());
    saved.states = states_for(in);
  }
  Scan scan = call_of<Scan>(in);
  scan.values = view_of<const kernel_bf16>(in.v);
  scan.y = view_of<kernel_bf16>(saved.y);
  scan.corrections = view_of<kernel_bf16>(saved.corrections);
  scan.in = pointer_or_null<const float>(in.state);
  scan.out = pointer<float>(last);
  scan.states = pointer_or_null<kernel_bf16>(saved.states);
  scan_forward(scan);
  return saved;
}

void fast_delta_attention_backward(const DeltaAttentionTensors& in,
                                   const DeltaAttentionSaved& saved, const Tensor& dy,
                                   const Tensor& dlast, const DeltaAttentionTensors& to) {
  const Tensor douts = aligned(dy);
  const Tensor gradients = states_for(in);
  Scan scan = call_of<Scan>(in);
  scan.values = view_of<const kernel_bf16>(douts);
  scan.corrections = view_of<kernel_bf16>(to.v);
  scan.in = pointer_or_null<const float>(dlast);
  scan.out = pointer_or_null<float>(to.state);
  scan.states = pointer<kernel_bf16>(gradients);
  scan_backward(scan);

  TokenGradients call = call_of<TokenGradients>(in);
  call.dy = view_of<const kernel_bf16>(douts);
  call.x = view_of<const kernel_bf16>(saved.corrections);
  call.left = view_of<const kernel_bf16>(to.v);
  call.states = pointer<const kernel_bf16>(saved.states);
  call.gradients = pointer<const kernel_bf16>(gradients);
  call.dq = view_of<kernel_bf16>(to.q);
  call.dk = view_of<kernel_bf16>(to.k);
  call.dv = view_of<kernel_bf16>(to.v);
  call.dbeta = stored_results(to.beta);
  call.dlog_decay = pointer_or_null<float>(to.log_decay);
  token_gradients(call);
}

}  // namespace linnet::cuda
