// Slot attention on Variables: conversion of dtypes, devices, what backward saves.
#include "attention/primitives/slot_attention.h"

#include <limits>

#include "attention/primitives/slot_attention_arrays.h"

namespace linnet {

using namespace slot_attention_detail;

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
  const Device device = inputs.q.value().device();
  const DType dtype = computing_type({inputs.q, inputs.k, inputs.v});
  const Arrays arrays{converted(inputs.q, dtype, device),
                      converted(inputs.k, dtype, device),
                      converted(inputs.v, dtype, device),
                      converted_logits(inputs.logits, dtype, device),
                      converted(state.keys, memory_type(dtype), device),
                      converted(state.values, memory_type(dtype), device),
                      converted(state.mass, DType::f64, device)};
  check_inputs(arrays, context);
  const int64_t B = arrays.q.size(0), T = arrays.q.size(1), H = arrays.q.size(2);
  const int64_t N = arrays.logits.size(3), K = arrays.k.size(3), V = arrays.v.size(3);
  if (arrays.keys.defined()) check_memory(arrays, B, H, N, K, V);
  const Tensor o = Tensor::empty({B, T, H, V}, dtype, device);
  const Arrays end = memory_of(B, H, N, K, V, dtype, device);
  const auto recorded = [&](Backward back) {
    const std::vector<Variable> outputs = record_many(
        "slot_attention_causal", {o.to(inputs.q.dtype()), end.keys, end.values, end.mass},
        {inputs.q, inputs.k, inputs.v, inputs.logits, state.keys, state.values, state.mass},
        std::move(back));
    return SlotAttentionResult{outputs[0], {outputs[1], outputs[2], outputs[3]}};
  };
  if constexpr (kCuda) {
    if (on_cuda(o)) {
      check_sizes(arrays, context.options, H, N, K, V);
      require(arrays.k.size(0) == B && arrays.k.size(1) == T, "slot_attention: causal queries [", B,
              ",", T, "] and keys [", arrays.k.size(0), ",", arrays.k.size(1),
              "] must be of the same tokens");
      cuda::slot_attention_causal_forward(context, arrays, end, o);
      return recorded([arrays, context, end, dtype](Gradients& gradients) {
        const Arrays d = all_like(arrays);
        cuda::slot_attention_causal_backward(context, arrays, end, gradients.output(0).to(dtype),
                                             memory_gradients(gradients, 1), d);
        add_all(gradients, {d.q, d.k, d.v, d.logits, d.keys, d.values, d.mass});
      });
    }
  }
  const std::vector<Span> spans = spans_of(context, arrays.q, arrays.keys.defined());
  dispatch(dtype, [&](auto zero) {
    using E = decltype(zero);
    slot_attention_causal_forward<E>(context.options, bind<E>(arrays, context), spans,
                                     state_of<const E>(arrays.keys, arrays.values, arrays.mass),
                                     state_of<E>(end.keys, end.values, end.mass), view_of<E>(o));
  });
  return recorded([arrays, context, spans, dtype](Gradients& gradients) {
    const Arrays d = all_like(arrays);
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
  });
}

SlotMemory slot_attention_memory(const SlotAttentionVariables& inputs,
                                 const SlotAttentionContext& context) {
  const Device device = inputs.k.value().device();
  const DType dtype = computing_type({inputs.k, inputs.v});
  Arrays arrays;
  arrays.k = converted(inputs.k, dtype, device);
  arrays.v = converted(inputs.v, dtype, device);
  arrays.logits = converted_logits(inputs.logits, dtype, device);
  check_inputs(arrays, context);
  const std::vector<Span> spans = spans_of(context, arrays.k, false);
  const int64_t H = arrays.k.size(2), N = arrays.logits.size(3), K = arrays.k.size(3);
  const int64_t V = arrays.v.size(3);
  const Arrays memory = memory_of(static_cast<int64_t>(spans.size()), H, N, K, V, dtype, device);
  const auto recorded = [&](Backward back) {
    const std::vector<Variable> outputs =
        record_many("slot_attention_memory", {memory.keys, memory.values, memory.mass},
                    {inputs.k, inputs.v, inputs.logits}, std::move(back));
    return SlotMemory{outputs[0], outputs[1], outputs[2]};
  };
  if constexpr (kCuda) {
    if (device.kind == DeviceKind::cuda) {
      check_sizes(arrays, context.options, H, N, K, V);
      cuda::slot_attention_memory_forward(context, arrays, spans, memory);
      return recorded([=](Gradients& gradients) {
        const Arrays d = all_like(arrays);
        cuda::slot_attention_memory_backward(context, arrays, spans, memory,
                                             memory_gradients(gradients, 0), d);
        add_all(gradients, {d.k, d.v, d.logits});
      });
    }
  }
  dispatch(dtype, [&](auto zero) {
    using E = decltype(zero);
    slot_attention_memory_forward<E>(context.options, bind<E>(arrays, context), spans,
                                     state_of<E>(memory.keys, memory.values, memory.mass));
  });
  return recorded([=](Gradients& gradients) {
    const Arrays d = all_like(arrays), given = memory_gradients(gradients, 0);
    dispatch(dtype, [&](auto zero) {
      using E = decltype(zero);
      slot_attention_memory_backward<E>(context.options, bind<E>(arrays, context), spans,
                                        state_of<const E>(memory.keys, memory.values, memory.mass),
                                        state_of<const E>(given.keys, given.values, given.mass),
                                        gradients_of<E>(d));
    });
    add_all(gradients, {d.k, d.v, d.logits});
  });
}

Variable slot_attention_read(const SlotAttentionVariables& inputs, const SlotMemory& memory,
                             const SlotAttentionContext& context) {
  const Device device = inputs.q.value().device();
  const DType dtype = computing_type({inputs.q});
  Arrays arrays;
  arrays.q = converted(inputs.q, dtype, device);
  arrays.keys = converted(memory.keys, memory_type(dtype), device);
  arrays.values = converted(memory.values, memory_type(dtype), device);
  arrays.mass = converted(memory.mass, DType::f64, device);
  check_inputs(arrays, context);
  require(arrays.keys.defined() && arrays.keys.shape().rank() == 4 && arrays.values.defined() &&
              arrays.values.shape().rank() == 4,
          "slot attention: expected a memory with keys [M,H,N,K] and values [M,H,N,V]");
  const std::vector<Span> spans = spans_of(context, arrays.q, false);
  const int64_t N = arrays.keys.size(2), V = arrays.values.size(3);
  check_memory(arrays, static_cast<int64_t>(spans.size()), arrays.q.size(2), N, arrays.q.size(3),
               V);
  const Tensor o =
      Tensor::empty({arrays.q.size(0), arrays.q.size(1), arrays.q.size(2), V}, dtype, device);
  const auto recorded = [&](Backward back) {
    return record("slot_attention_read", o.to(inputs.q.dtype()),
                  {inputs.q, memory.keys, memory.values, memory.mass}, std::move(back));
  };
  if constexpr (kCuda) {
    if (on_cuda(o)) {
      check_sizes(arrays, context.options, arrays.q.size(2), N, arrays.q.size(3), V);
      cuda::slot_attention_read_forward(context, arrays, spans, o);
      return recorded([arrays, context, spans, dtype](Gradients& gradients) {
        const Arrays d = all_like(arrays);
        cuda::slot_attention_read_backward(context, arrays, spans, gradients.output().to(dtype), d);
        add_all(gradients, {d.q, d.keys, d.values, d.mass});
      });
    }
  }
  dispatch(dtype, [&](auto zero) {
    using E = decltype(zero);
    slot_attention_read_forward<E>(context.options, bind<E>(arrays, context), spans, N,
                                   state_of<const E>(arrays.keys, arrays.values, arrays.mass),
                                   view_of<E>(o));
  });
  return recorded([arrays, context, spans, N, dtype](Gradients& gradients) {
    const Arrays d = all_like(arrays);
    const Tensor d_o = gradients.output().to(dtype);
    dispatch(dtype, [&](auto zero) {
      using E = decltype(zero);
      slot_attention_read_backward<E>(context.options, bind<E>(arrays, context), spans, N,
                                      state_of<const E>(arrays.keys, arrays.values, arrays.mass),
                                      view_of<E>(d_o), gradients_of<E>(d),
                                      state_of<E>(d.keys, d.values, d.mass));
    });
    add_all(gradients, {d.q, d.keys, d.values, d.mass});
  });
}

}  // namespace linnet
