// The delta rule on Variables: conversion of dtypes, tensors saved for backward.
#include "attention/primitives/delta_attention/delta_attention.h"

#include <algorithm>

#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/decay_check.h"
#include "attention/primitives/delta_attention/chunk.h"
#include "attention/primitives/delta_attention/cpu.h"
#include "attention/primitives/delta_attention/cuda/delta_attention.h"
#include "attention/primitives/delta_attention/cuda/path.h"
#include "attention/primitives/delta_attention/tensors.h"

namespace linnet {
namespace {

using namespace binding;
using namespace delta;

constexpr const char* kName = "delta attention";

void check(const DeltaAttentionTensors& in) {
  for (const Tensor* x : {&in.q, &in.k, &in.v}) check_sequence(*x, kName);
  check_shape(in.k, in.q.shape(), kName, "k");
  const int64_t B = in.q.size(0), T = in.q.size(1), H = in.q.size(2);
  check_shape(in.v, {B, T, H, in.v.size(3)}, kName, "v");
  check_shape(in.beta, {B, T, H}, kName, "beta");
  check_shape(in.log_decay, {B, T, H}, kName, "log_decay");
  check_shape(in.state, {B, H, in.q.size(3), in.v.size(3)}, kName, "state");
  check_shape(in.context.key_mask, {B, T}, kName, "key_mask");
  check_shape(in.context.segments, {B, T}, kName, "segments");
  check_log_decay(in.log_decay, in.context.key_mask, kName);
}

template <typename T>
DeltaInputs<T> inputs_of(const DeltaAttentionTensors& in) {
  return {view_of<T>(in.q),     view_of<T>(in.k),         view_of<T>(in.v),
          pointer<T>(in.beta),  pointer<T>(in.log_decay), pointer<uint8_t>(in.context.key_mask),
          pointer<T>(in.state), in.context.query_scale};
}

DeltaAttentionSaved forward(const DeltaAttentionTensors& in, const Tensor& last, bool keeps) {
  if constexpr (kCuda) {
    if (on_cuda(last) && cuda::delta_attention_is_fast(in)) {
      return cuda::fast_delta_attention_forward(in, last, keeps);
    }
  }
  DeltaAttentionSaved saved;
  const DType dtype = last.dtype();
  saved.y = Tensor::empty(in.v.shape(), dtype, last.device());
  if (keeps) saved.corrections = empty_like(saved.y);
  if constexpr (kCuda) {
    if (on_cuda(last)) {
      cuda::delta_attention_forward(in, saved, last);
      return saved;
    }
  }
  dispatch(dtype, [&](auto zero) {
    using E = decltype(zero);
    const DeltaInputs<E> inputs = inputs_of<E>(in);
    if (keeps) saved.states = Tensor::empty({kept_state_elements(inputs, in.spans)}, dtype);
    delta_forward<E>(inputs, in.spans, saved.y.data<E>(), last.data<E>(),
                     {pointer<E>(saved.corrections), pointer<E>(saved.states)});
  });
  return saved;
}

void backward(const DeltaAttentionTensors& in, const DeltaAttentionSaved& saved, const Tensor& dy,
              const Tensor& dlast, const DeltaAttentionTensors& d) {
  if constexpr (kCuda) {
    if (saved.fast) return cuda::fast_delta_attention_backward(in, saved, dy, dlast, d);
    if (on_cuda(dy)) return cuda::delta_attention_backward(in, saved, dy, dlast, d);
  }
  dispatch(saved.y.dtype(), [&](auto zero) {
    using E = decltype(zero);
    const DeltaKept<E> kept{saved.corrections.data<E>(), saved.states.data<E>()};
    delta_backward<E>(inputs_of<E>(in), in.spans, kept, saved.y.data<E>(), dy.data<E>(),
                      pointer<E>(dlast),
                      {view_of<E>(d.q), view_of<E>(d.k), view_of<E>(d.v), d.beta.data<E>(),
                       pointer<E>(d.log_decay), pointer<E>(d.state)});
  });
}

}  // namespace

DeltaAttentionResult delta_attention(const DeltaAttentionVariables& inputs,
                                     const DeltaAttentionContext& context, const Variable& state) {
  const DType dtype = computing_type(inputs.q);
  const Device device = inputs.q.value().device();
  require(!on_cuda(inputs.q.value()) || dtype != DType::f64, kName,
          ": f64 is computed on the CPU only; use --device cpu");
  // A device reads these as they are stored.
  const auto sequence = [&](const Variable& x) {
    return converted(x, on_cuda(inputs.q.value()) ? x.dtype() : dtype, kName, device);
  };
  DeltaAttentionTensors in{sequence(inputs.q),
                           sequence(inputs.k),
                           sequence(inputs.v),
                           sequence(inputs.beta),
                           converted(inputs.log_decay, dtype, kName, device),
                           converted(state, dtype, kName, device),
                           context};
  check(in);
  if (!on_cuda(in.q)) in.spans = spans_of(context.segments, in.q, in.state.defined());
  const std::vector<Variable> recorded{inputs.q,    inputs.k,         inputs.v,
                                       inputs.beta, inputs.log_decay, state};
  const Tensor last =
      Tensor::empty({in.q.size(0), in.q.size(2), in.q.size(3), in.v.size(3)}, dtype, device);
  const DeltaAttentionSaved saved = forward(in, last, needs_grad(recorded));
  const auto back = [in, saved](Gradients& gradients) {
    InputGradients to(gradients);
    const DeltaAttentionTensors d{to.tensor(0, in.q),
                                  to.tensor(1, in.k),
                                  to.tensor(2, in.v),
                                  to.tensor(3, in.beta),
                                  gradients.wanted(4) ? to.tensor(4, in.log_decay) : Tensor(),
                                  to.tensor(5, in.state)};
    const DType seen = on_cuda(in.q) ? in.q.dtype() : in.v.dtype();
    const Tensor dy = gradients.has_output(0) ? gradients.output(0).to(seen)
                                              : Tensor::zeros(in.v.shape(), seen, in.v.device());
    backward(in, saved, dy, output_or_none(gradients, 1), d);
    to.finish();
  };
  const std::vector<Variable> outputs =
      record_many("delta_attention", {saved.y.to(inputs.q.dtype()), last}, recorded, back);
  return {outputs[0], outputs[1]};
}

double delta_attention_multiply_adds(int64_t T, int64_t K, int64_t V) {
  double total = 0;
  for (int64_t begin = 0; begin < T; begin += kChunk) {
    const int64_t n = std::min(T - begin, kChunk), pairs = n * (n - 1) / 2;
    total += static_cast<double>(3 * n * K * V + (pairs + n) * (2 * K + V) + pairs * V);
  }
  return total;
}

bool delta_attention_takes_rounded(const Tensor& q, int64_t values) {
  if constexpr (kCuda) return on_cuda(q) && cuda::delta_attention_takes_rounded(q, values);
  return false;
}

}  // namespace linnet
