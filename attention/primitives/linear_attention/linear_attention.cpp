// Linear attention on Variables: conversion of dtypes, tensors saved for backward.
#include "attention/primitives/linear_attention/linear_attention.h"

#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/decay_check.h"
#include "attention/primitives/linear_attention/cuda/linear_attention.h"
#include "attention/primitives/linear_attention/cuda/path.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

using namespace binding;

constexpr const char* kName = "linear attention";

// q, k or v.
Tensor sequence(const Variable& x, DType computing, Device device) {
  return converted(x, x.defined() && on_cuda(x.value()) ? x.dtype() : computing, kName, device);
}

// dy as kernels read it, like q.
Tensor output_gradient(Gradients& gradients, DType computing) {
  const Tensor& dy = gradients.output(0);
  return on_cuda(dy) ? dy : dy.to(computing);
}

// What inputs and gradients share.
template <typename T, typename Fields>
Fields fields_of(const LinearAttentionTensors& tensors) {
  Fields out;
  out.q = view_of<T>(tensors.q);
  out.k = view_of<T>(tensors.k);
  out.v = view_of<T>(tensors.v);
  out.query_proportions = pointer<T>(tensors.query_proportions);
  out.key_proportions = pointer<T>(tensors.key_proportions);
  out.log_decay = pointer<T>(tensors.log_decay);
  return out;
}

template <typename T>
LinearAttentionInputs<T> inputs_of(const LinearAttentionTensors& in) {
  auto out = fields_of<T, LinearAttentionInputs<T>>(in);
  out.query_mask = pointer<uint8_t>(in.context.query_mask);
  out.key_mask = pointer<uint8_t>(in.context.key_mask);
  out.channel_decay = in.channel_decay();
  return out;
}

template <typename T>
LinearAttentionGradients<T> gradients_of(const LinearAttentionTensors& d) {
  return fields_of<T, LinearAttentionGradients<T>>(d);
}

template <typename T>
LinearAttentionState<T> state_of(const Tensor& memory, const Tensor& mass) {
  return {pointer<T>(memory), pointer<T>(mass)};
}

void check_inputs(const LinearAttentionTensors& in) {
  const LinearAttentionContext& context = in.context;
  for (const Tensor* x : {&in.q, &in.k, &in.v}) check_sequence(*x, kName);
  check_leading(context.query_mask, in.q, 2, kName, "query_mask");
  check_leading(context.key_mask, in.k, 2, kName, "key_mask");
  check_leading(context.segments, in.q, 2, kName, "segments");
  check_leading(context.segments, in.k, 2, kName, "segments");
  check_leading(in.query_proportions, in.q, 3, kName, "query_proportions");
  check_leading(in.key_proportions, in.k, 3, kName, "key_proportions");
  check_leading(in.log_decay, in.k, in.channel_decay() ? 4 : 3, kName, "log_decay");
  require(!in.channel_decay() || !in.key_proportions.defined(), kName,
          ": with proportions, which make two features of a channel, a log_decay per channel is ",
          "not defined; give one per head [B,T,G]");
  check_log_decay(in.log_decay, context.key_mask, kName);
}

// The shapes of `count` states for these keys, values and kind of features.
Shape memory_shape(int64_t count, int64_t heads, int64_t K, bool reweighted, int64_t V) {
  return {count, heads, reweighted ? 2 * K : K, V};
}
void check_state(const Tensor& memory, const Tensor& mass, const Shape& expected) {
  require(memory.shape() == expected && mass.defined() &&
              mass.shape() == Shape({expected[0], expected[1], expected[2]}),
          kName, ": expected a state ", expected, " with its mass, got ", memory.shape());
}

CallPath path_of(const LinearAttentionTensors& in) {
  if constexpr (kCuda) {
    if (on_cuda(in.q.defined() ? in.q : in.k)) return call_path(cuda::linear_attention_is_fast(in));
  }
  return CallPath::plain;
}

// The dtype of y as the kernels of this call write it and backward reads it.
DType output_type(const LinearAttentionTensors& in, DType computing) {
  return in.path == CallPath::tensor_cores ? in.q.dtype() : computing;
}

// Returns the states that the CPU's kernels keep, where `backward_follows`.
Tensor causal_forward(const LinearAttentionTensors& in, const Tensor& y, const Tensor& memory,
                      const Tensor& mass, const Tensor& denominators, bool backward_follows) {
  if constexpr (kCuda) {
    if (on_cuda(y)) {
      cuda::linear_attention_causal_forward(in, y, memory, mass, denominators);
      return Tensor();
    }
  }
  Tensor kept;
  dispatch(y.dtype(), [&](auto zero) {
    using E = decltype(zero);
    const LinearAttentionInputs<E> inputs = inputs_of<E>(in);
    if (backward_follows) {
      kept = Tensor::empty(
          {linear_attention_kept_elements<E>(in.context.options, inputs, in.spans)}, y.dtype());
    }
    linear_attention_causal_forward<E>(
        in.context.options, inputs, in.spans, state_of<const E>(in.memory, in.mass),
        state_of<E>(memory, mass), view_of<E>(y), denominators.data<E>(), pointer<E>(kept));
  });
  return kept;
}

void causal_backward(const LinearAttentionTensors& in, const Tensor& y, const Tensor& denominators,
                     const Tensor& kept, const Tensor& dy, const Tensor& dmemory,
                     const Tensor& dmass, const LinearAttentionTensors& d) {
  if constexpr (kCuda) {
    if (on_cuda(y)) {
      return cuda::linear_attention_causal_backward(in, y, denominators, dy, dmemory, dmass, d);
    }
  }
  dispatch(y.dtype(), [&](auto zero) {
    using E = decltype(zero);
    linear_attention_causal_backward<E>(
        in.context.options, inputs_of<E>(in), in.spans, state_of<const E>(in.memory, in.mass),
        view_of<E>(y), denominators.data<E>(), kept.data<E>(), view_of<E>(dy),
        state_of<const E>(dmemory, dmass), gradients_of<E>(d), state_of<E>(d.memory, d.mass));
  });
}

void memory_forward(const LinearAttentionTensors& in, const Tensor& memory, const Tensor& mass) {
  if constexpr (kCuda) {
    if (on_cuda(in.k)) {
      return cuda::linear_attention_memory_forward(in, memory, mass);
    }
  }
  dispatch(memory.dtype(), [&](auto zero) {
    using E = decltype(zero);
    linear_attention_memory_forward<E>(in.context.options, inputs_of<E>(in), in.spans,
                                       state_of<E>(memory, mass));
  });
}

void memory_backward(const LinearAttentionTensors& in, const Tensor& dmemory, const Tensor& dmass,
                     const LinearAttentionTensors& d) {
  if constexpr (kCuda) {
    if (on_cuda(in.k)) {
      return cuda::linear_attention_memory_backward(in, dmemory, dmass, d);
    }
  }
  dispatch(dmemory.dtype(), [&](auto zero) {
    using E = decltype(zero);
    linear_attention_memory_backward<E>(in.context.options, inputs_of<E>(in), in.spans,
                                        state_of<const E>(dmemory, dmass), gradients_of<E>(d));
  });
}

void read_forward(const LinearAttentionTensors& in, const Tensor& y, const Tensor& denominators) {
  if constexpr (kCuda) {
    if (on_cuda(y)) {
      return cuda::linear_attention_read_forward(in, y, denominators);
    }
  }
  dispatch(y.dtype(), [&](auto zero) {
    using E = decltype(zero);
    linear_attention_read_forward<E>(in.context.options, inputs_of<E>(in), in.spans,
                                     in.memory.size(1), state_of<const E>(in.memory, in.mass),
                                     view_of<E>(y), denominators.data<E>());
  });
}

void read_backward(const LinearAttentionTensors& in, const Tensor& y, const Tensor& denominators,
                   const Tensor& dy, const LinearAttentionTensors& d) {
  if constexpr (kCuda) {
    if (on_cuda(y)) {
      return cuda::linear_attention_read_backward(in, y, denominators, dy, d);
    }
  }
  dispatch(y.dtype(), [&](auto zero) {
    using E = decltype(zero);
    linear_attention_read_backward<E>(in.context.options, inputs_of<E>(in), in.spans,
                                      in.memory.size(1), state_of<const E>(in.memory, in.mass),
                                      view_of<E>(y), denominators.data<E>(), view_of<E>(dy),
                                      gradients_of<E>(d), state_of<E>(d.memory, d.mass));
  });
}

}  // namespace

LinearAttentionResult linear_attention_causal(const LinearAttentionVariables& inputs,
                                              const LinearAttentionContext& context,
                                              const LinearAttentionSums& state) {
  const DType dtype = computing_type(inputs.q);
  const Device device = inputs.q.value().device();
  LinearAttentionTensors in{sequence(inputs.q, dtype, device),
                            sequence(inputs.k, dtype, device),
                            sequence(inputs.v, dtype, device),
                            converted(inputs.query_proportions, dtype, kName, device),
                            converted(inputs.key_proportions, dtype, kName, device),
                            converted(state.memory, dtype, kName, device),
                            converted(state.mass, dtype, kName, device),
                            converted(inputs.log_decay, dtype, kName, device),
                            context};
  check_inputs(in);
  in.path = path_of(in);
  if (!on_cuda(in.q)) in.spans = spans_of(context.segments, in.q, in.memory.defined());
  const int64_t B = in.q.size(0), T = in.q.size(1), H = in.q.size(2);
  const Shape state_shape =
      memory_shape(B, in.k.size(2), in.k.size(3), in.key_proportions.defined(), in.v.size(3));
  if (in.memory.defined()) check_state(in.memory, in.mass, state_shape);
  const Tensor y = Tensor::empty({B, T, H, in.v.size(3)}, output_type(in, dtype), device);
  const Tensor memory = Tensor::empty(state_shape, dtype, device);
  const Tensor mass = Tensor::empty({B, state_shape[1], state_shape[2]}, dtype, device);
  const Tensor denominators = Tensor::empty({B, T, H}, dtype, device);
  const std::vector<Variable> recorded{
      inputs.q,     inputs.k,   inputs.v,        inputs.query_proportions, inputs.key_proportions,
      state.memory, state.mass, inputs.log_decay};
  const Tensor kept = causal_forward(in, y, memory, mass, denominators, needs_grad(recorded));
  const auto back = [in, y, denominators, kept, dtype](Gradients& gradients) {
    InputGradients to(gradients);
    // Left out where nobody wants them: those of the log-decay, and of proportions on the CPU.
    const auto if_wanted = [&](size_t input, const Tensor& like) {
      return gradients.wanted(input) ? to.tensor(input, like) : Tensor();
    };
    const auto proportions = [&](size_t input, const Tensor& like) {
      return on_cuda(y) ? to.tensor(input, like) : if_wanted(input, like);
    };
    const LinearAttentionTensors d{to.tensor(0, in.q),
                                   to.tensor(1, in.k),
                                   to.tensor(2, in.v),
                                   proportions(3, in.query_proportions),
                                   proportions(4, in.key_proportions),
                                   to.tensor(5, in.memory),
                                   to.tensor(6, in.mass),
                                   if_wanted(7, in.log_decay)};
    const Tensor dy = output_gradient(gradients, dtype);
    const Tensor dmemory = output_or_none(gradients, 1);
    const Tensor dmass = output_or_none(gradients, 2);
    causal_backward(in, y, denominators, kept, dy, dmemory, dmass, d);
    to.finish();
  };
  std::vector<Variable> outputs = record_many(
      "linear_attention_causal", {y.to(inputs.q.dtype()), memory, mass}, recorded, back);
  return {outputs[0], {outputs[1], outputs[2]}};
}

LinearAttentionSums linear_attention_memory(const LinearAttentionVariables& inputs,
                                            const LinearAttentionContext& context) {
  require(!inputs.log_decay.defined(), kName,
          ": a memory of all keys has no order in which it could ",
          "decay; leave log_decay undefined");
  const DType dtype = computing_type(inputs.k);
  const Device device = inputs.k.value().device();
  LinearAttentionTensors in;
  in.context = context;
  in.k = sequence(inputs.k, dtype, device);
  in.v = sequence(inputs.v, dtype, device);
  in.key_proportions = converted(inputs.key_proportions, dtype, kName, device);
  check_inputs(in);
  in.path = path_of(in);
  in.spans = spans_of(in.context.segments, in.k, false);
  const Shape shape = memory_shape(static_cast<int64_t>(in.spans.size()), in.k.size(2),
                                   in.k.size(3), in.key_proportions.defined(), in.v.size(3));
  const Tensor memory = Tensor::empty(shape, dtype, device);
  const Tensor mass = Tensor::empty({shape[0], shape[1], shape[2]}, dtype, device);
  memory_forward(in, memory, mass);
  const auto back = [in](Gradients& gradients) {
    LinearAttentionTensors d;
    d.k = empty_like(in.k);
    d.v = empty_like(in.v);
    d.key_proportions = empty_like(in.key_proportions);
    const Tensor dmemory = gradients.output(0), dmass = gradients.output(1);
    memory_backward(in, dmemory, dmass, d);
    add_all(gradients, {d.k, d.v, d.key_proportions});
  };
  std::vector<Variable> outputs = record_many("linear_attention_memory", {memory, mass},
                                              {inputs.k, inputs.v, inputs.key_proportions}, back);
  return {outputs[0], outputs[1]};
}

Variable linear_attention_read(const LinearAttentionVariables& inputs,
                               const LinearAttentionSums& memory,
                               const LinearAttentionContext& context) {
  const DType dtype = computing_type(inputs.q);
  const Device device = inputs.q.value().device();
  LinearAttentionTensors in;
  in.context = context;
  in.q = sequence(inputs.q, dtype, device);
  in.query_proportions = converted(inputs.query_proportions, dtype, kName, device);
  in.memory = converted(memory.memory, dtype, kName, device);
  in.mass = converted(memory.mass, dtype, kName, device);
  check_inputs(in);
  require(in.memory.defined() && in.memory.shape().rank() == 4, kName,
          ": expected a memory [N,G,m,V]");
  in.path = path_of(in);
  const int64_t B = in.q.size(0), T = in.q.size(1), H = in.q.size(2);
  in.spans = spans_of(in.context.segments, in.q, false);
  check_state(in.memory, in.mass,
              memory_shape(static_cast<int64_t>(in.spans.size()), in.memory.size(1), in.q.size(3),
                           in.query_proportions.defined(), in.memory.size(3)));
  const Tensor y = Tensor::empty({B, T, H, in.memory.size(3)}, output_type(in, dtype), device);
  const Tensor denominators = Tensor::empty({B, T, H}, dtype, device);
  read_forward(in, y, denominators);
  const auto back = [in, y, denominators, dtype](Gradients& gradients) {
    LinearAttentionTensors d;
    d.q = empty_like(in.q);
    d.query_proportions = empty_like(in.query_proportions);
    d.memory = empty_like(in.memory);
    d.mass = empty_like(in.mass);
    read_backward(in, y, denominators, output_gradient(gradients, dtype), d);
    add_all(gradients, {d.q, d.query_proportions, d.memory, d.mass});
  };
  return record("linear_attention_read", y.to(inputs.q.dtype()),
                {inputs.q, inputs.query_proportions, memory.memory, memory.mass}, back);
}

}  // namespace linnet
