// Slot attention on Variables: conversion of dtypes, write-time weights, what backward saves.
#include "attention/primitives/slot_attention.h"

#include <limits>

#include "attention/primitives/binding.h"

namespace linnet {
namespace {

using namespace binding;

constexpr const char* kName = "slot attention";

// Tensors in the computing type (mass: f64).
struct Arrays {
  Tensor q, k, v, logits, keys, values, mass;
};

template <typename E>
SlotAttentionState<E> state_of(const Tensor& keys, const Tensor& values, const Tensor& mass) {
  return {pointer<E>(keys), pointer<E>(values), pointer<double>(mass)};
}

template <typename T>
SlotAttentionInputs<T> bind(const Arrays& arrays, const SlotAttentionContext& context) {
  SlotAttentionInputs<T> in;
  in.q = view_of<T>(arrays.q);
  in.k = view_of<T>(arrays.k);
  in.v = view_of<T>(arrays.v);
  in.logits = view_of<T>(arrays.logits);
  in.query_mask = pointer<uint8_t>(context.query_mask);
  in.key_mask = pointer<uint8_t>(context.key_mask);
  return in;
}

void check_inputs(const Arrays& arrays, const SlotAttentionContext& context) {
  for (const Tensor* x : {&arrays.q, &arrays.k, &arrays.v, &arrays.logits}) {
    check_sequence(*x, kName);
  }
  check_leading(context.query_mask, arrays.q, 2, kName, "query_mask");
  check_leading(context.key_mask, arrays.k, 2, kName, "key_mask");
  check_leading(context.segments, arrays.q, 2, kName, "segments");
  check_leading(context.segments, arrays.k, 2, kName, "segments");
}

void check_memory(const Arrays& arrays, int64_t count, int64_t H, int64_t N, int64_t K, int64_t V) {
  const Shape keys({count, H, N, K});
  require(arrays.keys.shape() == keys && arrays.values.defined() && arrays.mass.defined() &&
              arrays.values.shape() == Shape({count, H, N, V}) &&
              arrays.mass.shape() == Shape({count, H, N}),
          kName, ": expected a memory with keys ", keys, ", values and mass to match, got keys ",
          arrays.keys.shape());
}

template <typename T>
SlotAttentionGradients<T> gradients_of(const Arrays& d) {
  return {view_of<T>(d.q), view_of<T>(d.k), view_of<T>(d.v), view_of<T>(d.logits)};
}

// Weights normalised at writing, in the dtype of the logits, and the mass after the last token.
std::vector<Variable> write_weights(const Variable& logits, const Variable& mass,
                                    const SlotAttentionContext& context) {
  const DType dtype = computing_type(logits);
  const Tensor from = converted(logits, dtype, kName), mass_in = converted(mass, DType::f64, kName);
  require(from.shape().rank() == 4, kName, ": expected logits [B,T,H,N], got ", from.shape());
  check_leading(context.key_mask, from, 2, kName, "key_mask");
  check_leading(context.segments, from, 2, kName, "segments");
  const Shape mass_shape({from.size(0), from.size(2), from.size(3)});
  require(!mass_in.defined() || mass_in.shape() == mass_shape, kName, ": expected mass ",
          mass_shape, ", got ", mass_in.defined() ? mass_in.shape() : Shape());
  const std::vector<Span> spans = spans_of(context.segments, from, mass_in.defined());
  const Tensor weights = Tensor::empty(from.shape(), dtype);
  const Tensor mass_out = Tensor::empty(mass_shape, DType::f64);
  dispatch(dtype, [&](auto zero) {
    using E = decltype(zero);
    slot_write_weights_forward<E>(
        context.options, view_of<E>(from), pointer<uint8_t>(context.key_mask), spans,
        pointer<double>(mass_in), mass_out.data<double>(), view_of<E>(weights));
  });
  const auto back = [context, from, mass_in, spans, dtype](Gradients& gradients) {
    const Tensor dweights = gradients.output(0).to(dtype), dmass = output_or_none(gradients, 1);
    const Tensor dlogits = empty_like(from), dmass_in = empty_like(mass_in);
    dispatch(dtype, [&](auto zero) {
      using E = decltype(zero);
      slot_write_weights_backward<E>(
          context.options, view_of<E>(from), pointer<uint8_t>(context.key_mask), spans,
          pointer<double>(mass_in), view_of<E>(dweights), pointer<double>(dmass),
          view_of<E>(dlogits), pointer<double>(dmass_in));
    });
    add_all(gradients, {dlogits, dmass_in});
  };
  return record_many("slot_write_weights", {weights, mass_out}, {logits, mass}, back);
}

// 1 for every slot that was written, 0 for empty ones.
Variable used_slots(const Variable& mass, const SlotAttentionOptions& options) {
  if (!mass.defined()) return Variable();
  const Tensor from = mass.value().to(DType::f64);
  const Tensor used = Tensor::empty(from.shape(), DType::f64);
  const double empty = slot_empty_mass(options);
  for (int64_t i = 0; i < from.elements(); ++i) {
    used.data<double>()[i] = from.data<double>()[i] == empty ? 0 : 1;
  }
  return Variable(used);
}

}  // namespace

double slot_empty_mass(const SlotAttentionOptions& options) {
  return options.control == SlotControl::exp ? -std::numeric_limits<double>::infinity() : 0;
}

SlotAttentionResult slot_attention_causal(const SlotAttentionVariables& inputs,
                                          const SlotAttentionContext& context,
                                          const SlotMemory& state) {
  if (context.write_time) {
    const std::vector<Variable> weights = write_weights(inputs.logits, state.mass, context);
    SlotAttentionContext sums = context;
    sums.write_time = false;
    sums.options.control = SlotControl::given;
    sums.options.normalizer = SlotNormalizer::none;
    SlotAttentionResult result =
        slot_attention_causal({inputs.q, inputs.k, inputs.v, weights[0]}, sums,
                              {state.keys, state.values, used_slots(state.mass, context.options)});
    result.state.mass = weights[1];
    return result;
  }
  const DType dtype = computing_type(inputs.q);
  const Arrays arrays{
      converted(inputs.q, dtype, kName),       converted(inputs.k, dtype, kName),
      converted(inputs.v, dtype, kName),       converted(inputs.logits, dtype, kName),
      converted(state.keys, dtype, kName),     converted(state.values, dtype, kName),
      converted(state.mass, DType::f64, kName)};
  check_inputs(arrays, context);
  const int64_t B = arrays.q.size(0), T = arrays.q.size(1), H = arrays.q.size(2);
  const int64_t N = arrays.logits.size(3), K = arrays.k.size(3), V = arrays.v.size(3);
  if (arrays.keys.defined()) check_memory(arrays, B, H, N, K, V);
  const std::vector<Span> spans = spans_of(context.segments, arrays.q, arrays.keys.defined());
  const Tensor o = Tensor::empty({B, T, H, V}, dtype);
  const Tensor keys = Tensor::empty({B, H, N, K}, dtype);
  const Tensor values = Tensor::empty({B, H, N, V}, dtype);
  const Tensor mass = Tensor::empty({B, H, N}, DType::f64);
  dispatch(dtype, [&](auto zero) {
    using E = decltype(zero);
    slot_attention_causal_forward<E>(context.options, bind<E>(arrays, context), spans,
                                     state_of<const E>(arrays.keys, arrays.values, arrays.mass),
                                     state_of<E>(keys, values, mass), view_of<E>(o));
  });
  const auto back = [arrays, context, spans, dtype](Gradients& gradients) {
    const Arrays d{empty_like(arrays.q),      empty_like(arrays.k),    empty_like(arrays.v),
                   empty_like(arrays.logits), empty_like(arrays.keys), empty_like(arrays.values),
                   empty_like(arrays.mass)};
    const Tensor d_o = gradients.output(0).to(dtype);
    const Tensor dkeys = output_or_none(gradients, 1), dvalues = output_or_none(gradients, 2);
    const Tensor dmass = output_or_none(gradients, 3);
    dispatch(dtype, [&](auto zero) {
      using E = decltype(zero);
      slot_attention_causal_backward<E>(context.options, bind<E>(arrays, context), spans,
                                        state_of<const E>(arrays.keys, arrays.values, arrays.mass),
                                        view_of<E>(d_o), state_of<const E>(dkeys, dvalues, dmass),
                                        gradients_of<E>(d), state_of<E>(d.keys, d.values, d.mass));
    });
    add_all(gradients, {d.q, d.k, d.v, d.logits, d.keys, d.values, d.mass});
  };
  const std::vector<Variable> outputs = record_many(
      "slot_attention_causal", {o.to(inputs.q.dtype()), keys, values, mass},
      {inputs.q, inputs.k, inputs.v, inputs.logits, state.keys, state.values, state.mass}, back);
  return {outputs[0], {outputs[1], outputs[2], outputs[3]}};
}

SlotMemory slot_attention_memory(const SlotAttentionVariables& inputs,
                                 const SlotAttentionContext& context) {
  const DType dtype = computing_type(inputs.k);
  Arrays arrays;
  arrays.k = converted(inputs.k, dtype, kName);
  arrays.v = converted(inputs.v, dtype, kName);
  arrays.logits = converted(inputs.logits, dtype, kName);
  check_inputs(arrays, context);
  const std::vector<Span> spans = spans_of(context.segments, arrays.k, false);
  const auto count = static_cast<int64_t>(spans.size());
  const int64_t H = arrays.k.size(2), N = arrays.logits.size(3);
  const Tensor keys = Tensor::empty({count, H, N, arrays.k.size(3)}, dtype);
  const Tensor values = Tensor::empty({count, H, N, arrays.v.size(3)}, dtype);
  const Tensor mass = Tensor::empty({count, H, N}, DType::f64);
  dispatch(dtype, [&](auto zero) {
    using E = decltype(zero);
    slot_attention_memory_forward<E>(context.options, bind<E>(arrays, context), spans,
                                     state_of<E>(keys, values, mass));
  });
  const auto back = [arrays, context, spans, keys, values, mass, dtype](Gradients& gradients) {
    Arrays d;
    d.k = empty_like(arrays.k);
    d.v = empty_like(arrays.v);
    d.logits = empty_like(arrays.logits);
    const Tensor dkeys = output_or_none(gradients, 0), dvalues = output_or_none(gradients, 1);
    const Tensor dmass = output_or_none(gradients, 2);
    dispatch(dtype, [&](auto zero) {
      using E = decltype(zero);
      slot_attention_memory_backward<E>(
          context.options, bind<E>(arrays, context), spans, state_of<const E>(keys, values, mass),
          state_of<const E>(dkeys, dvalues, dmass), gradients_of<E>(d));
    });
    add_all(gradients, {d.k, d.v, d.logits});
  };
  const std::vector<Variable> outputs = record_many("slot_attention_memory", {keys, values, mass},
                                                    {inputs.k, inputs.v, inputs.logits}, back);
  return {outputs[0], outputs[1], outputs[2]};
}

Variable slot_attention_read(const SlotAttentionVariables& inputs, const SlotMemory& memory,
                             const SlotAttentionContext& context) {
  const DType dtype = computing_type(inputs.q);
  Arrays arrays;
  arrays.q = converted(inputs.q, dtype, kName);
  arrays.keys = converted(memory.keys, dtype, kName);
  arrays.values = converted(memory.values, dtype, kName);
  arrays.mass = converted(memory.mass, DType::f64, kName);
  check_inputs(arrays, context);
  require(arrays.keys.defined() && arrays.keys.shape().rank() == 4 && arrays.values.defined() &&
              arrays.values.shape().rank() == 4,
          kName, ": expected a memory with keys [M,H,N,K] and values [M,H,N,V]");
  const std::vector<Span> spans = spans_of(context.segments, arrays.q, false);
  const int64_t N = arrays.keys.size(2), V = arrays.values.size(3);
  check_memory(arrays, static_cast<int64_t>(spans.size()), arrays.q.size(2), N, arrays.q.size(3),
               V);
  const Tensor o = Tensor::empty({arrays.q.size(0), arrays.q.size(1), arrays.q.size(2), V}, dtype);
  dispatch(dtype, [&](auto zero) {
    using E = decltype(zero);
    slot_attention_read_forward<E>(context.options, bind<E>(arrays, context), spans, N,
                                   state_of<const E>(arrays.keys, arrays.values, arrays.mass),
                                   view_of<E>(o));
  });
  const auto back = [arrays, context, spans, N, dtype](Gradients& gradients) {
    Arrays d;
    d.q = empty_like(arrays.q);
    d.keys = empty_like(arrays.keys);
    d.values = empty_like(arrays.values);
    d.mass = empty_like(arrays.mass);
    const Tensor d_o = gradients.output().to(dtype);
    dispatch(dtype, [&](auto zero) {
      using E = decltype(zero);
      slot_attention_read_backward<E>(context.options, bind<E>(arrays, context), spans, N,
                                      state_of<const E>(arrays.keys, arrays.values, arrays.mass),
                                      view_of<E>(d_o), gradients_of<E>(d),
                                      state_of<E>(d.keys, d.values, d.mass));
    });
    add_all(gradients, {d.q, d.keys, d.values, d.mass});
  };
  return record("slot_attention_read", o.to(inputs.q.dtype()),
                {inputs.q, memory.keys, memory.values, memory.mass}, back);
}

}  // namespace linnet
