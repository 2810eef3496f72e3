// Linear attention on Variables: conversion of dtypes, what backward saves.
#include "attention/primitives/linear_attention.h"

#include <type_traits>

#include "attention/primitives/cuda/linear_attention.h"
#include "core/cuda/backend.h"
#include "core/error.h"

namespace linnet {
namespace {

// Tensors as kernels read them: on the CPU all in the computing type.
using Arrays = cuda::LinearAttentionArrays;

// The type of sums: proportions, states, denominators.
DType computing_type(const Variable& x) {
  return x.dtype() == DType::f64 ? DType::f64 : DType::f32;
}

Tensor converted(const Variable& x, DType dtype, Device device) {
  if (!x.defined()) return Tensor();
  require(is_floating(x.dtype()) && x.value().device() == device,
          "linear attention: expected floating tensors on ", name_of(device));
  return x.value().to(dtype);
}
// q, k, v: kernels on a device read them as they are stored.
Tensor sequence(const Variable& x, DType computing, Device device) {
  return converted(x, x.defined() && on_cuda(x.value()) ? x.dtype() : computing, device);
}

// dy as kernels read it, like q.
Tensor output_gradient(Gradients& gradients, DType computing) {
  const Tensor& dy = gradients.output(0);
  return on_cuda(dy) ? dy : dy.to(computing);
}

Tensor empty_like(const Tensor& x) {
  return x.defined() ? Tensor::empty(x.shape(), x.dtype(), x.device()) : Tensor();
}

template <typename T>
T* pointer(const Tensor& x) {
  return x.defined() ? x.data<std::remove_const_t<T>>() : nullptr;
}

template <typename T>
SequenceView<T> view_of(const Tensor& x) {
  if (!x.defined()) return {};
  require(x.shape().rank() == 4, "linear attention: expected [B,T,H,K], got ", x.shape());
  return {x.data<T>(), x.size(0), x.size(1), x.size(2), x.size(3)};
}

void check_tokens(const Tensor& x, const Tensor& sequence, const char* name) {
  if (!x.defined() || !sequence.defined()) return;
  const Shape expected({sequence.size(0), sequence.size(1)});
  require(x.shape() == expected, "linear attention: expected ", name, " ", expected, ", got ",
          x.shape());
}

void check_heads(const Tensor& x, const Tensor& sequence, const char* name) {
  if (!x.defined() || !sequence.defined()) return;
  const Shape expected({sequence.size(0), sequence.size(1), sequence.size(2)});
  require(x.shape() == expected, "linear attention: expected ", name, " ", expected, ", got ",
          x.shape());
}

template <typename T>
LinearAttentionInputs<T> bind(const Arrays& arrays, const LinearAttentionContext& context) {
  LinearAttentionInputs<T> in;
  in.q = view_of<T>(arrays.q);
  in.k = view_of<T>(arrays.k);
  in.v = view_of<T>(arrays.v);
  in.query_proportions = pointer<T>(arrays.query_proportions);
  in.key_proportions = pointer<T>(arrays.key_proportions);
  if (context.query_mask.defined()) in.query_mask = context.query_mask.data<uint8_t>();
  if (context.key_mask.defined()) in.key_mask = context.key_mask.data<uint8_t>();
  return in;
}

template <typename T>
LinearAttentionState<T> state_of(const Tensor& memory, const Tensor& mass) {
  return {pointer<T>(memory), pointer<T>(mass)};
}

void check_inputs(const Arrays& arrays, const LinearAttentionContext& context) {
  for (const Tensor* x : {&arrays.q, &arrays.k, &arrays.v}) {
    require(!x->defined() || x->shape().rank() == 4, "linear attention: expected [B,T,H,K], got ",
            x->shape());
  }
  check_tokens(context.query_mask, arrays.q, "query_mask");
  check_tokens(context.key_mask, arrays.k, "key_mask");
  check_tokens(context.segments, arrays.q, "segments");
  check_tokens(context.segments, arrays.k, "segments");
  check_heads(arrays.query_proportions, arrays.q, "query_proportions");
  check_heads(arrays.key_proportions, arrays.k, "key_proportions");
}

// Segments on a device are copied to the host.
std::vector<Span> spans_of(const LinearAttentionContext& context, int64_t B, int64_t T,
                           bool has_state) {
  if (!context.segments.defined()) return make_spans(nullptr, B, T, has_state);
  const Tensor segments = context.segments.to(Device{});
  return make_spans(segments.data<int32_t>(), B, T, has_state);
}

// The shapes of `count` states for these keys, values and kind of features.
Shape memory_shape(int64_t count, int64_t heads, int64_t K, bool reweighted, int64_t V) {
  return {count, heads, reweighted ? 2 * K : K, V};
}
void check_state(const Tensor& memory, const Tensor& mass, const Shape& expected) {
  require(memory.shape() == expected && mass.defined() &&
              mass.shape() == Shape({expected[0], expected[1], expected[2]}),
          "linear attention: expected a state ", expected, " with its mass, got ", memory.shape());
}

// Calls compute(T{}) with the computing type.
template <typename Compute>
void dispatch(DType dtype, const Compute& compute) {
  dtype == DType::f64 ? compute(double{}) : compute(float{});
}

template <typename T>
LinearAttentionGradients<T> gradients_of(const Arrays& d) {
  LinearAttentionGradients<T> out;
  out.q = view_of<T>(d.q);
  out.k = view_of<T>(d.k);
  out.v = view_of<T>(d.v);
  out.query_proportions = pointer<T>(d.query_proportions);
  out.key_proportions = pointer<T>(d.key_proportions);
  return out;
}

void causal_forward(const LinearAttentionContext& context, const Arrays& in, const Tensor& y,
                    const Tensor& memory, const Tensor& mass, const Tensor& denominators) {
  if constexpr (kCuda) {
    if (on_cuda(y)) {
      return cuda::linear_attention_causal_forward(context, in, y, memory, mass, denominators);
    }
  }
  const std::vector<Span> spans =
      spans_of(context, in.q.size(0), in.q.size(1), in.memory.defined());
  dispatch(y.dtype(), [&](auto zero) {
    using E = decltype(zero);
    linear_attention_causal_forward<E>(
        context.options, bind<E>(in, context), spans, state_of<const E>(in.memory, in.mass),
        state_of<E>(memory, mass), view_of<E>(y), denominators.data<E>());
  });
}

void causal_backward(const LinearAttentionContext& context, const Arrays& in, const Tensor& y,
                     const Tensor& denominators, const Tensor& dy, const Tensor& dmemory,
                     const Tensor& dmass, const Arrays& d) {
  if constexpr (kCuda) {
    if (on_cuda(y)) {
      return cuda::linear_attention_causal_backward(context, in, y, denominators, dy, dmemory,
                                                    dmass, d);
    }
  }
  const std::vector<Span> spans =
      spans_of(context, in.q.size(0), in.q.size(1), in.memory.defined());
  dispatch(y.dtype(), [&](auto zero) {
    using E = decltype(zero);
    linear_attention_causal_backward<E>(
        context.options, bind<E>(in, context), spans, state_of<const E>(in.memory, in.mass),
        view_of<E>(y), denominators.data<E>(), view_of<E>(dy), state_of<const E>(dmemory, dmass),
        gradients_of<E>(d), state_of<E>(d.memory, d.mass));
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

void add_all(Gradients& gradients, std::initializer_list<Tensor> tensors) {
  size_t input = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.defined()) gradients.add(input, tensor);
    ++input;
  }
}

}  // namespace

LinearAttentionResult linear_attention_causal(const LinearAttentionVariables& inputs,
                                              const LinearAttentionContext& context,
                                              const LinearAttentionSums& state) {
  const DType dtype = computing_type(inputs.q);
  const Device device = inputs.q.value().device();
  const Arrays arrays{sequence(inputs.q, dtype, device),
                      sequence(inputs.k, dtype, device),
                      sequence(inputs.v, dtype, device),
                      converted(inputs.query_proportions, dtype, device),
                      converted(inputs.key_proportions, dtype, device),
                      converted(state.memory, dtype, device),
                      converted(state.mass, dtype, device)};
  check_inputs(arrays, context);
  const int64_t B = arrays.q.size(0), T = arrays.q.size(1), H = arrays.q.size(2);
  const Shape state_shape = memory_shape(B, arrays.k.size(2), arrays.k.size(3),
                                         arrays.key_proportions.defined(), arrays.v.size(3));
  if (arrays.memory.defined()) check_state(arrays.memory, arrays.mass, state_shape);
  const Tensor y = Tensor::empty({B, T, H, arrays.v.size(3)}, dtype, device);
  const Tensor memory = Tensor::empty(state_shape, dtype, device);
  const Tensor mass = Tensor::empty({B, state_shape[1], state_shape[2]}, dtype, device);
  const Tensor denominators = Tensor::empty({B, T, H}, dtype, device);
  causal_forward(context, arrays, y, memory, mass, denominators);
  const auto back = [arrays, context, y, denominators, dtype](Gradients& gradients) {
    const Arrays d{empty_like(arrays.q),
                   empty_like(arrays.k),
                   empty_like(arrays.v),
                   empty_like(arrays.query_proportions),
                   empty_like(arrays.key_proportions),
                   empty_like(arrays.memory),
                   empty_like(arrays.mass)};
    const Tensor dy = output_gradient(gradients, dtype);
    const Tensor dmemory = gradients.has_output(1) ? gradients.output(1) : Tensor();
    const Tensor dmass = gradients.has_output(2) ? gradients.output(2) : Tensor();
    causal_backward(context, arrays, y, denominators, dy, dmemory, dmass, d);
    add_all(gradients, {d.q, d.k, d.v, d.query_proportions, d.key_proportions, d.memory, d.mass});
  };
  std::vector<Variable> outputs =
      record_many("linear_attention_causal", {y.to(inputs.q.dtype()), memory, mass},
                  {inputs.q, inputs.k, inputs.v, inputs.query_proportions, inputs.key_proportions,
                   state.memory, state.mass},
                  back);
  return {outputs[0], {outputs[1], outputs[2]}};
}

LinearAttentionSums linear_attention_memory(const LinearAttentionVariables& inputs,
                                            const LinearAttentionContext& context) {
  const DType dtype = computing_type(inputs.k);
  const Device device = inputs.k.value().device();
  Arrays arrays;
  arrays.k = sequence(inputs.k, dtype, device);
  arrays.v = sequence(inputs.v, dtype, device);
  arrays.key_proportions = converted(inputs.key_proportions, dtype, device);
  check_inputs(arrays, context);
  const std::vector<Span> spans = spans_of(context, arrays.k.size(0), arrays.k.size(1), false);
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
  arrays.query_proportions = converted(inputs.query_proportions, dtype, device);
  arrays.memory = converted(memory.memory, dtype, device);
  arrays.mass = converted(memory.mass, dtype, device);
  check_inputs(arrays, context);
  require(arrays.memory.defined() && arrays.memory.shape().rank() == 4,
          "linear attention: expected a memory [N,G,m,V]");
  const int64_t B = arrays.q.size(0), T = arrays.q.size(1), H = arrays.q.size(2);
  const std::vector<Span> spans = spans_of(context, B, T, false);
  check_state(
      arrays.memory, arrays.mass,
      memory_shape(static_cast<int64_t>(spans.size()), arrays.memory.size(1), arrays.q.size(3),
                   arrays.query_proportions.defined(), arrays.memory.size(3)));
  const Tensor y = Tensor::empty({B, T, H, arrays.memory.size(3)}, dtype, device);
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
