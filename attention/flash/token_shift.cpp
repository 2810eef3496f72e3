#include "attention/flash/token_shift.h"

#include "attention/common/mixer_support.h"
#include "attention/flash/cuda/token_shift.h"
#include "attention/flash/token_shift_rule.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

// y from x and past, or, in reverse, the gradients of both.
void shift(const Tensor& from, const Tensor& past, const TokenShift& rule, const Tensor& to) {
  dispatch_floating(to.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* x = from.data<T>();
    const T* before = past.defined() ? past.data<T>() : nullptr;
    for (int64_t i = 0; i < to.elements(); ++i) {
      const int64_t source = rule.source(i);
      to.data<T>()[i] = source >= 0                   ? x[source]
                        : source == TokenShift::kPast ? before[rule.past(i)]
                                                      : T(0);
    }
  });
}

void shift_backward(const Tensor& dy, const TokenShift& rule, const Tensor& dx) {
  dispatch_floating(dx.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < dx.elements(); ++i) {
      const int64_t reader = rule.reader(i);
      dx.data<T>()[i] = reader >= 0 ? dy.data<T>()[reader] : T(0);
    }
  });
}

void shift_past_backward(const Tensor& dy, const TokenShift& rule, const Tensor& dpast) {
  dispatch_floating(dpast.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < dpast.elements(); ++i) {
      const int64_t reader = rule.past_reader(i);
      dpast.data<T>()[i] = reader >= 0 ? dy.data<T>()[reader] : T(0);
    }
  });
}

// In host or device memory; null where undefined.
template <typename T>
const T* pointer_of(const Tensor& x) {
  return x.defined() ? static_cast<const T*>(x.raw()) : nullptr;
}

}  // namespace

ShiftedTokens shift_tokens(const Variable& x, const MixerContext& context, const MixerState& state,
                           bool causal) {
  const int64_t B = x.size(0), T = x.size(1), E = x.size(2);
  Variable past;
  Tensor past_mask;
  if (const auto found = state.find("shift"); found != state.end()) {
    past = as_dtype(found->second, x.dtype());
    past_mask = mask_from_state(state, "shift_valid");
  }
  TokenShift rule;
  rule.T = T;
  rule.E = E;
  rule.has_past = past.defined();
  rule.mask = pointer_of<uint8_t>(context.key_mask);
  rule.segments = pointer_of<int32_t>(context.segments);
  rule.past_mask = pointer_of<uint8_t>(past_mask);
  const bool on_device = kCuda && on_cuda(x.value());
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.value().device());
  const Tensor before = past.defined() ? past.value() : Tensor();
  if constexpr (kCuda) {
    if (on_device) cuda::shift_tokens(x.value(), before, rule, y);
  }
  if (!on_device) shift(x.value(), before, rule, y);
  ShiftedTokens result;
  // The masks live as long as the rule that points into them.
  const std::vector<Tensor> kept{context.key_mask, context.segments, past_mask};
  result.x = record("shift_tokens", y, {x, past}, [=, shape = x.shape()](Gradients& gradients) {
    const Tensor& dy = gradients.output();
    const auto backward = [&](size_t input, const Shape& like, auto on_host, auto on_gpu) {
      if (!gradients.wanted(input)) return;
      const Tensor d = Tensor::empty(like, dy.dtype(), dy.device());
      if constexpr (kCuda) {
        if (on_device) on_gpu(dy, rule, d);
      }
      if (!on_device) on_host(dy, rule, d);
      gradients.add(input, d);
    };
    static_cast<void>(kept);
    backward(0, shape, shift_backward, cuda::shift_tokens_backward);
    if (rule.has_past) backward(1, {B, 1, E}, shift_past_backward, cuda::shift_past_backward);
  });
  if (!causal) return result;
  result.state["shift"] = carry_tokens(past, x, 1);
  result.state["shift_valid"] =
      mask_to_state(carry_mask(past_mask, context.key_mask, context.segments, B,
                               past.defined() ? 1 : 0, T, 1, x.value().device()));
  return result;
}

}  // namespace linnet
