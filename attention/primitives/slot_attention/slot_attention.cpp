// Slot attention on Variables: conversion of dtypes, write-time weights, tensors saved for
// backward.
#include "attention/primitives/slot_attention/slot_attention.h"

#include <limits>

#include "attention/primitives/common/binding.h"
#include "attention/primitives/slot_attention/cuda/path.h"
#include "attention/primitives/slot_attention/cuda/slot_attention.h"
#include "autograd/embedding.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

using namespace binding;

constexpr const char* kName = "slot attention";

DType memory_type(DType computing) {
  return computing == DType::bf16 ? DType::f32 : computing;
}

// Control logits; a CUDA device reads them as they are.
Tensor converted_logits(const Variable& x, DType dtype, Device device) {
  if (!x.defined()) return Tensor();
  const bool as_is = device.kind == DeviceKind::cuda && x.dtype() == DType::bf16;
  return converted(x, as_is ? DType::bf16 : memory_type(dtype), kName, device);
}

template <typename E>
SlotAttentionState<E> state_of(const SlotAttentionTensors& x) {
  return {pointer<E>(x.keys), pointer<E>(x.values), pointer<double>(x.mass)};
}

template <typename T>
SlotAttentionInputs<T> bind(const SlotAttentionTensors& in, const SlotAttentionContext& context) {
  SlotAttentionInputs<T> out;
  out.q = view_of<T>(in.q);
  out.k = view_of<T>(in.k);
  out.v = view_of<T>(in.v);
  out.logits = view_of<T>(in.logits);
  out.query_mask = pointer<uint8_t>(context.query_mask);
  out.key_mask = pointer<uint8_t>(context.key_mask);
  out.value_logits = view_of<T>(in.value_logits);
  out.examples = pointer<int64_t>(context.place.examples);
  out.time_offset = context.place.time_offset;
  return out;
}

void check_inputs(const SlotAttentionTensors& in, const SlotAttentionContext& context) {
  for (const Tensor* x : {&in.q, &in.k, &in.v, &in.logits, &in.value_logits}) {
    check_sequence(*x, kName);
  }
  check_leading(context.query_mask, in.q, 2, kName, "query_mask");
  check_leading(context.key_mask, in.k, 2, kName, "key_mask");
  check_leading(context.segments, in.q, 2, kName, "segments");
  check_leading(context.segments, in.k, 2, kName, "segments");
  check_leading(context.place.examples, in.q, 1, kName, "example numbers");
}

void check_memory(const SlotAttentionTensors& in, int64_t count, int64_t H, int64_t N, int64_t K,
                  int64_t V) {
  const Shape keys({count, H, N, K});
  require(in.keys.shape() == keys && in.values.defined() && in.mass.defined() &&
              in.values.shape() == Shape({count, H, N, V}) &&
              in.mass.shape() == Shape({count, H, N}),
          kName, ": expected a memory with keys ", keys, ", values and mass to match, got keys ",
          in.keys.shape());
}

// The same checks that the CPU's kernels make, for devices.
[[maybe_unused]] void check_sizes(const SlotAttentionTensors& in,
                                  const SlotAttentionOptions& options, int64_t H, int64_t N,
                                  int64_t K, int64_t V) {
  SlotAttentionInputs<float> sizes;
  sizes.q = sizes_of(in.q);
  sizes.k = sizes_of(in.k);
  sizes.v = sizes_of(in.v);
  sizes.logits = sizes_of(in.logits);
  sizes.value_logits = sizes_of(in.value_logits);
  check_slot_attention(options, sizes, H, N, K, V);
}

SlotAttentionTensors all_like(const SlotAttentionTensors& x) {
  return {empty_like(x.q),    empty_like(x.k),      empty_like(x.v),    empty_like(x.logits),
          empty_like(x.keys), empty_like(x.values), empty_like(x.mass), empty_like(x.value_logits)};
}

// Memories to be written: their keys, values and mass.
SlotAttentionTensors memory_of(int64_t count, int64_t H, int64_t N, int64_t K, int64_t V,
                               DType dtype, Device device) {
  const DType wide = memory_type(dtype);
  SlotAttentionTensors out;
  out.keys = Tensor::empty({count, H, N, K}, wide, device);
  out.values = Tensor::empty({count, H, N, V}, wide, device);
  out.mass = Tensor::empty({count, H, N}, DType::f64, device);
  return out;
}

template <typename T>
SlotAttentionGradients<T> gradients_of(const SlotAttentionTensors& d) {
  return {view_of<T>(d.q), view_of<T>(d.k), view_of<T>(d.v), view_of<T>(d.logits),
          view_of<T>(d.value_logits)};
}

// The gradients of a memory whose keys are output number `first`; undefined where not used.
SlotAttentionTensors memory_gradients(Gradients& gradients, size_t first) {
  SlotAttentionTensors out;
  out.keys = output_or_none(gradients, first);
  out.values = output_or_none(gradients, first + 1);
  out.mass = output_or_none(gradients, first + 2);
  return out;
}

// Weights normalised at writing, f32 or wider, and the normalizer after the last token.
std::vector<Variable> write_weights(const Variable& logits, const Variable& mass,
                                    const SlotAttentionContext& context) {
  const Device device = logits.value().device();
  const DType dtype = storage_type({&logits}, kName);
  const Tensor from = converted_logits(logits, dtype, device);
  const Tensor mass_in = converted(mass, DType::f64, kName, device);
  require(from.shape().rank() == 4, kName, ": expected logits [B,T,H,N], got ", from.shape());
  check_leading(context.key_mask, from, 2, kName, "key_mask");
  check_leading(context.segments, from, 2, kName, "segments");
  const Shape mass_shape({from.size(0), from.size(2), from.size(3)});
  require(!mass_in.defined() || mass_in.shape() == mass_shape, kName, ": expected mass ",
          mass_shape, ", got ", mass_in.defined() ? mass_in.shape() : Shape());
  const Tensor weights = Tensor::empty(from.shape(), memory_type(dtype), device);
  const Tensor mass_out = Tensor::empty(mass_shape, DType::f64, device);
  if constexpr (kCuda) {
    if (on_cuda(from)) {
      cuda::slot_write_weights_forward(context, from, mass_in, mass_out, weights);
      const auto back = [context, from, mass_in](Gradients& gradients) {
        const Tensor dlogits = empty_like(from), dmass_in = empty_like(mass_in);
        cuda::slot_write_weights_backward(context, from, mass_in, gradients.output(0),
                                          output_or_none(gradients, 1), dlogits, dmass_in);
        add_all(gradients, {dlogits, dmass_in});
      };
      return record_many("slot_write_weights", {weights, mass_out}, {logits, mass}, back);
    }
  }
  const std::vector<Span> spans = spans_of(context.segments, from, mass_in.defined());
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

// Weights are normalised, then summed.
SlotAttentionResult written_once(const SlotAttentionVariables& inputs,
                                 const SlotAttentionContext& context, const SlotMemory& state) {
  const std::vector<Variable> weights = write_weights(inputs.logits, state.mass, context);
  std::vector<Variable> of_values(2);
  if (inputs.value_logits.defined()) {
    require(state.mass.defined() == state.value_mass.defined(), kName,
            ": with weights of their own for values, a state has both normalizers or none");
    of_values = write_weights(inputs.value_logits, state.value_mass, context);
  }
  SlotAttentionContext sums = context;
  sums.write_time = false;
  sums.accumulate = true;
  sums.options.control = SlotControl::given;
  sums.options.normalizer = SlotNormalizer::none;
  SlotMemory before;
  if (context.accumulate && state.mass.defined()) {
    before = {state.keys, state.values, Variable(used_slots(state.mass.value(), context.options))};
  }
  if (!context.accumulate) {
    // Every token is a segment of its own.
    const Tensor& q = inputs.q.value();
    sums.segments = counted_positions(q.size(0), q.size(1), 0, q.device());
  }
  SlotAttentionResult result =
      slot_attention_causal({inputs.q, inputs.k, inputs.v, weights[0], of_values[0]}, sums, before);
  if (!context.accumulate) result.state = {};
  result.state.mass = weights[1];
  result.state.value_mass = of_values[1];
  return result;
}

}  // namespace

double slot_empty_mass(const SlotAttentionOptions& options) {
  return options.control == SlotControl::exp ? -std::numeric_limits<double>::infinity() : 0;
}

Tensor used_slots(const Tensor& mass, const SlotAttentionOptions& options) {
  const Tensor from = mass.to(DType::f64);
  if constexpr (kCuda) {
    if (on_cuda(from)) return cuda::used_slots(from, slot_empty_mass(options));
  }
  const Tensor used = Tensor::empty(from.shape(), DType::f64);
  const double empty = slot_empty_mass(options);
  for (int64_t i = 0; i < from.elements(); ++i) {
    used.data<double>()[i] = from.data<double>()[i] == empty ? 0 : 1;
  }
  return used;
}

SlotAttentionResult slot_attention_causal(const SlotAttentionVariables& inputs,
                                          const SlotAttentionContext& context,
                                          const SlotMemory& state) {
  if (context.write_time) return written_once(inputs, context, state);
  require(context.accumulate, kName,
          ": only weights that are fixed at write time can do without sums");
  const Device device = inputs.q.value().device();
  const DType dtype = storage_type({&inputs.q, &inputs.k, &inputs.v}, kName);
  SlotAttentionTensors in{converted(inputs.q, dtype, kName, device),
                          converted(inputs.k, dtype, kName, device),
                          converted(inputs.v, dtype, kName, device),
                          converted_logits(inputs.logits, dtype, device),
                          converted(state.keys, memory_type(dtype), kName, device),
                          converted(state.values, memory_type(dtype), kName, device),
                          converted(state.mass, DType::f64, kName, device),
                          converted_logits(inputs.value_logits, dtype, device)};
  check_inputs(in, context);
  const int64_t B = in.q.size(0), T = in.q.size(1), H = in.q.size(2);
  const int64_t N = in.logits.size(3), K = in.k.size(3), V = in.v.size(3);
  if (in.keys.defined()) check_memory(in, B, H, N, K, V);
  const Tensor o = Tensor::empty({B, T, H, V}, dtype, device);
  const SlotAttentionTensors end = memory_of(B, H, N, K, V, dtype, device);
  const auto recorded = [&](Backward back) {
    const std::vector<Variable> outputs = record_many(
        "slot_attention_causal", {o.to(inputs.q.dtype()), end.keys, end.values, end.mass},
        {inputs.q, inputs.k, inputs.v, inputs.logits, state.keys, state.values, state.mass,
         inputs.value_logits},
        std::move(back));
    return SlotAttentionResult{outputs[0], {outputs[1], outputs[2], outputs[3]}};
  };
  if constexpr (kCuda) {
    if (on_cuda(o)) {
      check_sizes(in, context.options, H, N, K, V);
      require(in.k.size(0) == B && in.k.size(1) == T, "slot_attention: causal queries [", B, ",", T,
              "] and keys [", in.k.size(0), ",", in.k.size(1), "] must be of the same tokens");
      in.path = call_path(cuda::slot_attention_is_fast(context, in));
      cuda::slot_attention_causal_forward(context, in, end, o);
      return recorded([in, context, end, dtype](Gradients& gradients) {
        const SlotAttentionTensors d = all_like(in);
        cuda::slot_attention_causal_backward(context, in, end, gradients.output(0).to(dtype),
                                             memory_gradients(gradients, 1), d);
        add_all(gradients, {d.q, d.k, d.v, d.logits, d.keys, d.values, d.mass, d.value_logits});
      });
    }
  }
  // Kept for backward.
  Tensor read_logits;
  if (needs_grad({inputs.q, inputs.k, inputs.v, inputs.logits, state.keys, state.values, state.mass,
                  inputs.value_logits})) {
    read_logits = Tensor::empty({B, T, H, N}, dtype, device);
  }
  const std::vector<Span> spans = spans_of(context.segments, in.q, in.keys.defined());
  dispatch(dtype, [&](auto zero) {
    using E = decltype(zero);
    slot_attention_causal_forward<E>(context.options, bind<E>(in, context), spans,
                                     state_of<const E>(in), state_of<E>(end), view_of<E>(o),
                                     view_of<E>(read_logits));
  });
  return recorded([in, context, spans, dtype, read_logits](Gradients& gradients) {
    InputGradients to(gradients);
    const SlotAttentionTensors d{to.tensor(0, in.q),    to.tensor(1, in.k),
                                 to.tensor(2, in.v),    to.tensor(3, in.logits),
                                 to.tensor(4, in.keys), to.tensor(5, in.values),
                                 to.tensor(6, in.mass), to.tensor(7, in.value_logits)};
    const Tensor d_o = gradients.output(0).to(dtype);
    const SlotAttentionTensors dend = memory_gradients(gradients, 1);
    dispatch(dtype, [&](auto zero) {
      using E = decltype(zero);
      slot_attention_causal_backward<E>(
          context.options, bind<E>(in, context), spans, state_of<const E>(in), view_of<E>(d_o),
          view_of<E>(read_logits), state_of<const E>(dend), gradients_of<E>(d), state_of<E>(d));
    });
    to.finish();
  });
}

SlotMemory slot_attention_memory(const SlotAttentionVariables& inputs,
                                 const SlotAttentionContext& context) {
  require(!inputs.value_logits.defined(), kName,
          ": a finished memory has one control; write keys and values to two memories");
  const Device device = inputs.k.value().device();
  const DType dtype = storage_type({&inputs.k, &inputs.v}, kName);
  SlotAttentionTensors in;
  in.k = converted(inputs.k, dtype, kName, device);
  in.v = converted(inputs.v, dtype, kName, device);
  in.logits = converted_logits(inputs.logits, dtype, device);
  check_inputs(in, context);
  const std::vector<Span> spans = spans_of(context.segments, in.k, false);
  const int64_t H = in.k.size(2), N = in.logits.size(3), K = in.k.size(3);
  const int64_t V = in.v.size(3);
  const SlotAttentionTensors memory =
      memory_of(static_cast<int64_t>(spans.size()), H, N, K, V, dtype, device);
  const auto recorded = [&](Backward back) {
    const std::vector<Variable> outputs =
        record_many("slot_attention_memory", {memory.keys, memory.values, memory.mass},
                    {inputs.k, inputs.v, inputs.logits}, std::move(back));
    return SlotMemory{outputs[0], outputs[1], outputs[2]};
  };
  if constexpr (kCuda) {
    if (device.kind == DeviceKind::cuda) {
      check_sizes(in, context.options, H, N, K, V);
      in.path = call_path(cuda::slot_attention_is_fast(context, in));
      in.spans = cuda::slot_attention_spans(spans, in.k);
      cuda::slot_attention_memory_forward(context, in, memory);
      return recorded([=](Gradients& gradients) {
        const SlotAttentionTensors d = all_like(in);
        cuda::slot_attention_memory_backward(context, in, memory, memory_gradients(gradients, 0),
                                             d);
        add_all(gradients, {d.k, d.v, d.logits});
      });
    }
  }
  dispatch(dtype, [&](auto zero) {
    using E = decltype(zero);
    slot_attention_memory_forward<E>(context.options, bind<E>(in, context), spans,
                                     state_of<E>(memory));
  });
  return recorded([=](Gradients& gradients) {
    const SlotAttentionTensors d = all_like(in), given = memory_gradients(gradients, 0);
    dispatch(dtype, [&](auto zero) {
      using E = decltype(zero);
      slot_attention_memory_backward<E>(context.options, bind<E>(in, context), spans,
                                        state_of<const E>(memory), state_of<const E>(given),
                                        gradients_of<E>(d));
    });
    add_all(gradients, {d.k, d.v, d.logits});
  });
}

Variable slot_attention_read(const SlotAttentionVariables& inputs, const SlotMemory& memory,
                             const SlotAttentionContext& context) {
  const Device device = inputs.q.value().device();
  const DType dtype = storage_type({&inputs.q}, kName);
  SlotAttentionTensors in;
  in.q = converted(inputs.q, dtype, kName, device);
  in.keys = converted(memory.keys, memory_type(dtype), kName, device);
  in.values = converted(memory.values, memory_type(dtype), kName, device);
  in.mass = converted(memory.mass, DType::f64, kName, device);
  check_inputs(in, context);
  require(in.keys.defined() && in.keys.shape().rank() == 4 && in.values.defined() &&
              in.values.shape().rank() == 4,
          "slot attention: expected a memory with keys [M,H,N,K] and values [M,H,N,V]");
  const std::vector<Span> spans = spans_of(context.segments, in.q, false);
  const int64_t N = in.keys.size(2), V = in.values.size(3);
  check_memory(in, static_cast<int64_t>(spans.size()), in.q.size(2), N, in.q.size(3), V);
  const Tensor o = Tensor::empty({in.q.size(0), in.q.size(1), in.q.size(2), V}, dtype, device);
  const auto recorded = [&](Backward back) {
    return record("slot_attention_read", o.to(inputs.q.dtype()),
                  {inputs.q, memory.keys, memory.values, memory.mass}, std::move(back));
  };
  if constexpr (kCuda) {
    if (on_cuda(o)) {
      check_sizes(in, context.options, in.q.size(2), N, in.q.size(3), V);
      in.path = call_path(cuda::slot_attention_is_fast(context, in));
      in.spans = cuda::slot_attention_spans(spans, in.q);
      cuda::slot_attention_read_forward(context, in, o);
      return recorded([in, context, dtype](Gradients& gradients) {
        const SlotAttentionTensors d = all_like(in);
        cuda::slot_attention_read_backward(context, in, gradients.output().to(dtype), d);
        add_all(gradients, {d.q, d.keys, d.values, d.mass});
      });
    }
  }
  dispatch(dtype, [&](auto zero) {
    using E = decltype(zero);
    slot_attention_read_forward<E>(context.options, bind<E>(in, context), spans, N,
                                   state_of<const E>(in), view_of<E>(o));
  });
  return recorded([in, context, spans, N, dtype](Gradients& gradients) {
    const SlotAttentionTensors d = all_like(in);
    const Tensor d_o = gradients.output().to(dtype);
    dispatch(dtype, [&](auto zero) {
      using E = decltype(zero);
      slot_attention_read_backward<E>(context.options, bind<E>(in, context), spans, N,
                                      state_of<const E>(in), view_of<E>(d_o), gradients_of<E>(d),
                                      state_of<E>(d));
    });
    add_all(gradients, {d.q, d.keys, d.values, d.mass});
  });
}

}  // namespace linnet
