// Linear attention on Variables: conversion of dtypes, what backward saves.
#include "attention/primitives/linear_attention.h"

#include "attention/primitives/binding.h"

namespace linnet {
namespace {

using namespace binding;

constexpr const char* kName = "linear attention";

// Tensors in the computing type.
struct Arrays {
  Tensor q, k, v, query_proportions, key_proportions, memory, mass;
};

template <typename T>
LinearAttentionInputs<T> bind(const Arrays& arrays, const LinearAttentionContext& context) {
  LinearAttentionInputs<T> in;
  in.q = view_of<T>(arrays.q);
  in.k = view_of<T>(arrays.k);
  in.v = view_of<T>(arrays.v);
  in.query_proportions = pointer<T>(arrays.query_proportions);
  in.key_proportions = pointer<T>(arrays.key_proportions);
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
  return out;
}

}  // namespace

LinearAttentionResult linear_attention_causal(const LinearAttentionVariables& inputs,
                                              const LinearAttentionContext& context,
                                              const LinearAttentionSums& state) {
  const DType dtype = computing_type(inputs.q);
  const Arrays arrays{converted(inputs.q, dtype, kName),
                      converted(inputs.k, dtype, kName),
                      converted(inputs.v, dtype, kName),
                      converted(inputs.query_proportions, dtype, kName),
                      converted(inputs.key_proportions, dtype, kName),
                      converted(state.memory, dtype, kName),
                      converted(state.mass, dtype, kName)};
  check_inputs(arrays, context);
  const int64_t B = arrays.q.size(0), T = arrays.q.size(1), H = arrays.q.size(2);
  const Shape state_shape = memory_shape(B, arrays.k.size(2), arrays.k.size(3),
                                         arrays.key_proportions.defined(), arrays.v.size(3));
  if (arrays.memory.defined()) check_state(arrays.memory, arrays.mass, state_shape);
  const std::vector<Span> spans = spans_of(context.segments, arrays.q, arrays.memory.defined());
  const Tensor y = Tensor::empty({B, T, H, arrays.v.size(3)}, dtype);
  const Tensor memory = Tensor::empty(state_shape, dtype);
  const Tensor mass = Tensor::empty({B, state_shape[1], state_shape[2]}, dtype);
  const Tensor denominators = Tensor::empty({B, T, H}, dtype);
  dispatch(dtype, [&](auto zero) {
    using E = decltype(zero);
    linear_attention_causal_forward<E>(context.options, bind<E>(arrays, context), spans,
                                       state_of<const E>(arrays.memory, arrays.mass),
                                       state_of<E>(memory, mass), view_of<E>(y),
                                       denominators.data<E>());
  });
  const auto back = [arrays, context, spans, y, denominators, dtype](Gradients& gradients) {
    const Arrays d{empty_like(arrays.q),
                   empty_like(arrays.k),
                   empty_like(arrays.v),
                   empty_like(arrays.query_proportions),
                   empty_like(arrays.key_proportions),
                   empty_like(arrays.memory),
                   empty_like(arrays.mass)};
    const Tensor dy = gradients.output(0).to(dtype);
    const Tensor dmemory = output_or_none(gradients, 1);
    const Tensor dmass = output_or_none(gradients, 2);
    dispatch(dtype, [&](auto zero) {
      using E = decltype(zero);
      linear_attention_causal_backward<E>(context.options, bind<E>(arrays, context), spans,
                                          state_of<const E>(arrays.memory, arrays.mass),
                                          view_of<E>(y), denominators.data<E>(), view_of<E>(dy),
                                          state_of<const E>(dmemory, dmass), gradients_of<E>(d),
                                          state_of<E>(d.memory, d.mass));
    });
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
  Arrays arrays;
  arrays.k = converted(inputs.k, dtype, kName);
  arrays.v = converted(inputs.v, dtype, kName);
  arrays.key_proportions = converted(inputs.key_proportions, dtype, kName);
  check_inputs(arrays, context);
  const std::vector<Span> spans = spans_of(context.segments, arrays.k, false);
  const Shape shape =
      memory_shape(static_cast<int64_t>(spans.size()), arrays.k.size(2), arrays.k.size(3),
                   arrays.key_proportions.defined(), arrays.v.size(3));
  const Tensor memory = Tensor::empty(shape, dtype);
  const Tensor mass = Tensor::empty({shape[0], shape[1], shape[2]}, dtype);
  dispatch(dtype, [&](auto zero) {
    using E = decltype(zero);
    linear_attention_memory_forward<E>(context.options, bind<E>(arrays, context), spans,
                                       state_of<E>(memory, mass));
  });
  const auto back = [arrays, context, spans](Gradients& gradients) {
    Arrays d;
    d.k = empty_like(arrays.k);
    d.v = empty_like(arrays.v);
    d.key_proportions = empty_like(arrays.key_proportions);
    const Tensor dmemory = gradients.output(0), dmass = gradients.output(1);
    dispatch(arrays.k.dtype(), [&](auto zero) {
      using E = decltype(zero);
      linear_attention_memory_backward<E>(context.options, bind<E>(arrays, context), spans,
                                          state_of<const E>(dmemory, dmass), gradients_of<E>(d));
    });
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
  Arrays arrays;
  arrays.q = converted(inputs.q, dtype, kName);
  arrays.query_proportions = converted(inputs.query_proportions, dtype, kName);
  arrays.memory = converted(memory.memory, dtype, kName);
  arrays.mass = converted(memory.mass, dtype, kName);
  check_inputs(arrays, context);
  require(arrays.memory.defined() && arrays.memory.shape().rank() == 4, kName,
          ": expected a memory [N,G,m,V]");
  const int64_t B = arrays.q.size(0), T = arrays.q.size(1), H = arrays.q.size(2);
  const int64_t key_heads = arrays.memory.size(1);
  const std::vector<Span> spans = spans_of(context.segments, arrays.q, false);
  check_state(arrays.memory, arrays.mass,
              memory_shape(static_cast<int64_t>(spans.size()), key_heads, arrays.q.size(3),
                           arrays.query_proportions.defined(), arrays.memory.size(3)));
  const Tensor y = Tensor::empty({B, T, H, arrays.memory.size(3)}, dtype);
  const Tensor denominators = Tensor::empty({B, T, H}, dtype);
  dispatch(dtype, [&](auto zero) {
    using E = decltype(zero);
    linear_attention_read_forward<E>(context.options, bind<E>(arrays, context), spans, key_heads,
                                     state_of<const E>(arrays.memory, arrays.mass), view_of<E>(y),
                                     denominators.data<E>());
  });
  const auto back = [arrays, context, spans, key_heads, y, denominators](Gradients& gradients) {
    Arrays d;
    d.q = empty_like(arrays.q);
    d.query_proportions = empty_like(arrays.query_proportions);
    d.memory = empty_like(arrays.memory);
    d.mass = empty_like(arrays.mass);
    const Tensor dy = gradients.output().to(y.dtype());
    dispatch(y.dtype(), [&](auto zero) {
      using E = decltype(zero);
      linear_attention_read_backward<E>(context.options, bind<E>(arrays, context), spans, key_heads,
                                        state_of<const E>(arrays.memory, arrays.mass),
                                        view_of<E>(y), denominators.data<E>(), view_of<E>(dy),
                                        gradients_of<E>(d), state_of<E>(d.memory, d.mass));
    });
    add_all(gradients, {d.q, d.query_proportions, d.memory, d.mass});
  };
  return record("linear_attention_read", y.to(inputs.q.dtype()),
                {inputs.q, inputs.query_proportions, memory.memory, memory.mass}, back);
}

}  // namespace linnet
