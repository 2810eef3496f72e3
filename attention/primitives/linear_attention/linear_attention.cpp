// Linear attention on Variables: conversion of dtypes, tensors saved for backward.
#include "attention/primitives/linear_attention/linear_attention.h"

#include "attention/primitives/common/binding.h"
#include "attention/primitives/linear_attention/cuda/linear_attention.h"
#include "attention/primitives/linear_attention/cuda/path.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

using namespace binding;

constexpr const char* kName = "linear attention";

// Tensors as kernels read them: in the computing type, but q, k and v on a device as they are
// stored.
using Arrays = cuda::LinearAttentionArrays;

// q, k or v.
Tensor sequence(const Variable& x, DType computing, Device device) {
  return converted(x, x.defined() && on_cuda(x.value()) ? x.dtype() : computing, kName, device);
}

// dy as kernels read it, like q.
Tensor output_gradient(Gradients& gradients, DType computing) {
  const Tensor& dy = gradients.output(0);
  return on_cuda(dy) ? dy : dy.to(computing);
}

template <typename T>
LinearAttentionInputs<T> bind(const Arrays& arrays, const LinearAttentionContext& context) {
  LinearAttentionInputs<T> in;
  in.q = view_of<T>(arrays.q);
  in.k = view_of<T>(arrays.k);
  in.v = view_of<T>(arrays.v);
  in.query_proportions = pointer<T>(arrays.query_proportions);
  in.key_proportions = pointer<T>(arrays.key_proportions);
  in.log_decay = pointer<T>(arrays.log_decay);
  in.query_mask = pointer<uint8_t>(context.query_mask);
  in.key_mask = pointer<uint8_t>(context.key_mask);
  return in;
}

template <typename T>
LinearAttentionState<T> state_of(const Tensor& memory, const Tensor& mass) {
  return {pointer<T>(memory), pointer<T>(mass)};
}

void check_inputs(const Arrays& arrays, const LinearAttentionContext& context) {
  for (const Tensor* x : {&arrays.q, &arrays.k, &arrays.v}) check_sequence(*x, kName);
  check_leading(context.query_mask, arrays.q, 2, kName, "query_mask");
  check_leading(context.key_mask, arrays.k, 2, kName, "key_mask");
  check_leading(context.segments, arrays.q, 2, kName, "segments");
  check_leading(context.segments, arrays.k, 2, kName, "segments");
  check_leading(arrays.query_proportions, arrays.q, 3, kName, "query_proportions");
  check_leading(arrays.key_proportions, arrays.k, 3, kName, "key_proportions");
  check_leading(arrays.log_decay, arrays.k, 3, kName, "log_decay");
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

template <typename T>
LinearAttentionGradients<T> gradients_of(const Arrays& d) {
  LinearAttentionGradients<T> out;
  out.q = view_of<T>(d.q);
  out.k = view_of<T>(d.k);
  out.v = view_of<T>(d.v);
  out.query_proportions = pointer<T>(d.query_proportions);
  out.key_proportions = pointer<T>(d.key_proportions);
  out.log_decay = pointer<T>(d.log_decay);
  return out;
}

CallPath path_of(const Arrays& in) {
  if constexpr (kCuda) {
    if (on_cuda(in.q.defined() ? in.q : in.k)) return call_path(cuda::linear_attention_is_fast(in));
  }
  return CallPath::plain;
}

// The dtype of y as the kernels of this call write it and backward reads it.
DType output_type(const Arrays& in, DType computing) {
  return in.path == CallPath::tensor_cores ? in.q.dtype() : computing;
}

// Returns the states that the CPU's kernels keep, where `backward_follows`.
Tensor causal_forward(const LinearAttentionContext& context, const Arrays& in, const Tensor& y,
                      const Tensor& memory, const Tensor& mass, const Tensor& denominators,
                      bool backward_follows) {
  if constexpr (kCuda) {
    if (on_cuda(y)) {
      cuda::linear_attention_causal_forward(context, in, y, memory, mass, denominators);
      return Tensor();
    }
  }
  const std::vector<Span> spans = spans_of(context.segments, in.q, in.memory.defined());
  Tensor kept;
  dispatch(y.dtype(), [&](auto zero) {
    using E = decltype(zero);
    const LinearAttentionInputs<E> inputs = bind<E>(in, context);
    if (backward_follows) {
      kept = Tensor::empty({linear_attention_kept_elements<E>(context.options, inputs, spans)},
                           y.dtype());
    }
    linear_attention_causal_forward<E>(
        context.options, inputs, spans, state_of<const E>(in.memory, in.mass),
        state_of<E>(memory, mass), view_of<E>(y), denominators.data<E>(), pointer<E>(kept));
  });
  return kept;
}

void causal_backward(const LinearAttentionContext& context, const Arrays& in, const Tensor& y,
                     const Tensor& denominators, const Tensor& kept, const Tensor& dy,
                     const Tensor& dmemory, const Tensor& dmass, const Arrays& d) {
  if constexpr (kCuda) {
    if (on_cuda(y)) {
      return cuda::linear_attention_causal_backward(context, in, y, denominators, dy, dmemory,
                                                    dmass, d);
    }
  }
  const std::vector<Span> spans = spans_of(context.segments, in.q, in.memory.defined());
  dispatch(y.dtype(), [&](auto zero) {
    using E = decltype(zero);
    linear_attention_causal_backward<E>(
        context.options, bind<E>(in, context), spans, state_of<const E>(in.memory, in.mass),
        view_of<E>(y), denominators.data<E>(), kept.data<E>(), view_of<E>(dy),
        state_of<const E>(dmemory, dmass), gradients_of<E>(d), state_of<E>(d.memory, d.mass));
  });
}

void memory_forward(const LinearAttentionContext& context, const Arrays& in,
                    const std::vector<Span>& spans, const Tensor& memory, const Tensor& mass) {
  if constexpr (kCuda) {
    if (on_cuda(in.k)) {
      return cuda::linear_attention_memory_forward(context, in, spans, memory, mass);
    }
  }
  dispatch(memory.dtype(), [&](auto zero) {
    using E = decltype(zero);
    linear_attention_memory_forward<E>(context.options, bind<E>(in, context), spans,
                                       state_of<E>(memory, mass));
  });
}

void memory_backward(const LinearAttentionContext& context, const Arrays& in,
                     const std::vector<Span>& spans, const Tensor& dmemory, const Tensor& dmass,
                     const Arrays& d) {
  if constexpr (kCuda) {
    if (on_cuda(in.k)) {
      return cuda::linear_attention_memory_backward(context, in, spans, dmemory, dmass, d);
    }
  }
  dispatch(dmemory.dtype(), [&](auto zero) {
    using E = decltype(zero);
    linear_attention_memory_backward<E>(context.options, bind<E>(in, context), spans,
                                        state_of<const E>(dmemory, dmass), gradients_of<E>(d));
  });
}

void read_forward(const LinearAttentionContext& context, const Arrays& in,
                  const std::vector<Span>& spans, const Tensor& y, const Tensor& denominators) {
  if constexpr (kCuda) {
    if (on_cuda(y)) {
      return cuda::linear_attention_read_forward(context, in, spans, y, denominators);
    }
  }
  dispatch(y.dtype(), [&](auto zero) {
    using E = decltype(zero);
    linear_attention_read_forward<E>(context.options, bind<E>(in, context), spans,
                                     in.memory.size(1), state_of<const E>(in.memory, in.mass),
                                     view_of<E>(y), denominators.data<E>());
  });
}

void read_backward(const LinearAttentionContext& context, const Arrays& in,
                   const std::vector<Span>& spans, const Tensor& y, const Tensor& denominators,
                   const Tensor& dy, const Arrays& d) {
  if constexpr (kCuda) {
    if (on_cuda(y)) {
      return cuda::linear_attention_read_backward(context, in, spans, y, denominators, dy, d);
    }
  }
  dispatch(y.dtype(), [&](auto zero) {
    using E = decltype(zero);
    linear_attention_read_backward<E>(context.options, bind<E>(in, context), spans,
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
  Arrays arrays{sequence(inputs.q, dtype, device),
                sequence(inputs.k, dtype, device),
                sequence(inputs.v, dtype, device),
                converted(inputs.query_proportions, dtype, kName, device),
                converted(inputs.key_proportions, dtype, kName, device),
                converted(state.memory, dtype, kName, device),
                converted(state.mass, dtype, kName, device),
                converted(inputs.log_decay, dtype, kName, device)};
  check_inputs(arrays, context);
  arrays.path = path_of(arrays);
  const int64_t B = arrays.q.size(0), T = arrays.q.size(1), H = arrays.q.size(2);
  const Shape state_shape = memory_shape(B, arrays.k.size(2), arrays.k.size(3),
                                         arrays.key_proportions.defined(), arrays.v.size(3));
  if (arrays.memory.defined()) check_state(arrays.memory, arrays.mass, state_shape);
  const Tensor y = Tensor::empty({B, T, H, arrays.v.size(3)}, output_type(arrays, dtype), device);
  const Tensor memory = Tensor::empty(state_shape, dtype, device);
  const Tensor mass = Tensor::empty({B, state_shape[1], state_shape[2]}, dtype, device);
  const Tensor denominators = Tensor::empty({B, T, H}, dtype, device);
  const std::vector<Variable> recorded{
      inputs.q,     inputs.k,   inputs.v,        inputs.query_proportions, inputs.key_proportions,
      state.memory, state.mass, inputs.log_decay};
  const Tensor kept =
      causal_forward(context, arrays, y, memory, mass, denominators, needs_grad(recorded));
  const auto back = [arrays, context, y, denominators, kept, dtype](Gradients& gradients) {
    InputGradients to(gradients);
    // Left out where nobody wants them: those of the log-decay, and of proportions on the CPU.
    const auto if_wanted = [&](size_t input, const Tensor& like) {
      return gradients.wanted(input) ? to.tensor(input, like) : Tensor();
    };
    const auto proportions = [&](size_t input, const Tensor& like) {
      return on_cuda(y) ? to.tensor(input, like) : if_wanted(input, like);
    };
    const Arrays d{to.tensor(0, arrays.q),
                   to.tensor(1, arrays.k),
                   to.tensor(2, arrays.v),
                   proportions(3, arrays.query_proportions),
                   proportions(4, arrays.key_proportions),
                   to.tensor(5, arrays.memory),
                   to.tensor(6, arrays.mass),
                   if_wanted(7, arrays.log_decay)};
    const Tensor dy = output_gradient(gradients, dtype);
    const Tensor dmemory = output_or_none(gradients, 1);
    const Tensor dmass = output_or_none(gradients, 2);
    causal_backward(context, arrays, y, denominators, kept, dy, dmemory, dmass, d);
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
  Arrays arrays;
  arrays.k = sequence(inputs.k, dtype, device);
  arrays.v = sequence(inputs.v, dtype, device);
  arrays.key_proportions = converted(inputs.key_proportions, dtype, kName, device);
  check_inputs(arrays, context);
  arrays.path = path_of(arrays);
  const std::vector<Span> spans = spans_of(context.segments, arrays.k, false);
  const Shape shape =
      memory_shape(static_cast<int64_t>(spans.size()), arrays.k.size(2), arrays.k.size(3),
                   arrays.key_proportions.defined(), arrays.v.size(3));
  const Tensor memory = Tensor::empty(shape, dtype, device);
  const Tensor mass = Tensor::empty({shape[0], shape[1], shape[2]}, dtype, device);
  memory_forward(context, arrays, spans, memory, mass);
  const auto back = [arrays, context, spans](Gradients& gradients) {
    Arrays d;
    d.k = empty_like(arrays.k);
    d.v = empty_like(arrays.v);
    d.key_proportions = empty_like(arrays.key_proportions);
    const Tensor dmemory = gradients.output(0), dmass = gradients.output(1);
    memory_backward(context, arrays, spans, dmemory, dmass, d);
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
  Arrays arrays;
  arrays.q = sequence(inputs.q, dtype, device);
  arrays.query_proportions = converted(inputs.query_proportions, dtype, kName, device);
  arrays.memory = converted(memory.memory, dtype, kName, device);
  arrays.mass = converted(memory.mass, dtype, kName, device);
  check_inputs(arrays, context);
  require(arrays.memory.defined() && arrays.memory.shape().rank() == 4, kName,
          ": expected a memory [N,G,m,V]");
  arrays.path = path_of(arrays);
  const int64_t B = arrays.q.size(0), T = arrays.q.size(1), H = arrays.q.size(2);
  const std::vector<Span> spans = spans_of(context.segments, arrays.q, false);
  check_state(
      arrays.memory, arrays.mass,
      memory_shape(static_cast<int64_t>(spans.size()), arrays.memory.size(1), arrays.q.size(3),
                   arrays.query_proportions.defined(), arrays.memory.size(3)));
  const Tensor y =
      Tensor::empty({B, T, H, arrays.memory.size(3)}, output_type(arrays, dtype), device);
  const Tensor denominators = Tensor::empty({B, T, H}, dtype, device);
  read_forward(context, arrays, spans, y, denominators);
  const auto back = [arrays, context, spans, y, denominators, dtype](Gradients& gradients) {
    Arrays d;
    d.q = empty_like(arrays.q);
    d.query_proportions = empty_like(arrays.query_proportions);
    d.memory = empty_like(arrays.memory);
    d.mass = empty_like(arrays.mass);
    read_backward(context, arrays, spans, y, denominators, output_gradient(gradients, dtype), d);
    add_all(gradients, {d.q, d.query_proportions, d.memory, d.mass});
  };
  return record("linear_attention_read", y.to(inputs.q.dtype()),
                {inputs.q, inputs.query_proportions, memory.memory, memory.mass}, back);
}

}  // namespace linnet
