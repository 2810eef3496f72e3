// Slot attention on a CUDA device: in which order the steps are taken.
#include "attention/primitives/slot_attention/cuda/slot_attention.h"

#include "attention/primitives/slot_attention/cuda/fast.h"
#include "attention/primitives/slot_attention/cuda/kernels.h"
#include "attention/primitives/slot_attention/cuda/step.h"
#include "attention/tensor_core/aligned_views.h"

namespace linnet::cuda {
namespace {

// Every row is one run of tokens.
SlotSequences rows_of(const Tensor& sequence, int64_t N) {
  return {{}, sequence.size(0), sequence.size(1), sequence.size(2), N};
}

// The same with a run for each span.
SlotSequences spans_of(const std::vector<Span>& spans, const Tensor& sequence, int64_t N) {
  SlotSequences out = rows_of(sequence, N);
  out.count = static_cast<int64_t>(spans.size());
  if (out.count == sequence.size(0)) return out;  // whole rows
  std::vector<int32_t> bounds;
  for (const Span& span : spans) {
    for (const int64_t number : {span.row, span.begin, span.end}) {
      bounds.push_back(static_cast<int32_t>(number));
    }
  }
  out.spans = Tensor::from(bounds, {out.count, 3}, sequence.device());
  return out;
}

// Sizes of a write by these weights.
SlotScan scan_of(const SlotSequences& sequences, const Tensor& x, const Tensor& x_mask,
                 const SlotWeights& weights) {
  SlotScan scan;
  scan.sequences = sequences;
  scan.dtype = x.dtype();
  scan.width = x.size(3);
  scan.x = x;
  scan.x_mask = x_mask;
  scan.weights = weights.weights;
  scan.decays = weights.decays;
  return scan;
}
// Sizes of a read without a write.
SlotScan read_of(const SlotSequences& sequences, const Tensor& reader, const Tensor& reader_mask) {
  SlotScan scan;
  scan.sequences = sequences;
  scan.dtype = reader.dtype();
  scan.width = reader.size(3);
  scan.reader = reader;
  scan.reader_mask = reader_mask;
  return scan;
}

// The weights of values, where they have logits of their own (which are not normalised).
SlotWeights value_weights(const SlotAttentionContext& context, const SlotSequences& rows,
                          const SlotTensors& in, const SlotWeights& of_keys) {
  if (!in.value_logits.defined()) return of_keys;
  return slot_weights(context, rows, in.value_logits, {}, {});
}

Tensor slots_like(const Tensor& sequence, int64_t N) {
  return Tensor::empty({sequence.size(0), sequence.size(1), sequence.size(2), N}, DType::f32,
                       sequence.device());
}

template <typename E>
SlotAttentionState<E> state_of(const SlotTensors& x) {
  return {pointer_or_null<E>(x.keys), pointer_or_null<E>(x.values),
          pointer_or_null<typename SlotAttentionState<E>::Mass>(x.mass)};
}

// Arguments of both passes on tensor cores: `spans` where a memory is only written or only read.
// Sequences that a call lacks are views of no tokens.
template <typename Call>
Call fast_call(const SlotAttentionContext& context, const SlotTensors& in,
               const SlotSequences* spans) {
  const Tensor& some = in.q.defined() ? in.q : in.k;
  const auto view = [&](const Tensor& x, int64_t width) {
    if (x.defined()) return view_of<const kernel_bf16>(x);
    return slot_attention_fast::Reads(pointer<const kernel_bf16>(some), some.size(0), 0,
                                      some.size(2), width);
  };
  Call call;
  call.device = some.device();
  call.options = context.options;
  call.examples = pointer_or_null<const int64_t>(context.place.examples);
  call.time_offset = context.place.time_offset;
  call.q = view(in.q, some.size(3));
  call.k = view(in.k, some.size(3));
  call.v = in.v.defined() ? view(in.v, 0) : view({}, in.values.size(3));
  call.logits = in.logits.defined() ? view(in.logits, 0) : view({}, in.keys.size(2));
  call.query_mask = pointer_or_null<const uint8_t>(context.query_mask);
  call.key_mask = pointer_or_null<const uint8_t>(context.key_mask);
  call.state_in = state_of<const float>(in);
  if (spans == nullptr) {
    call.segments = pointer_or_null<const int32_t>(context.segments);
  } else {
    call.spans = {pointer_or_null<const int32_t>(spans->spans), spans->count};
  }
  return call;
}

void fast_forward(const SlotAttentionContext& context, const SlotTensors& in,
                  const SlotTensors& end, const Tensor& o, const SlotSequences* spans = nullptr) {
  auto call = fast_call<slot_attention_fast::Forward>(context, in, spans);
  call.state_out = state_of<float>(end);
  call.o = view_of<kernel_bf16>(o);
  slot_attention_fast::forward(call);
}

// dsums as slot_sums_gradient makes it.
void fast_backward(const SlotAttentionContext& context, const SlotTensors& in, const Tensor& d_o,
                   const SlotTensors& dend, const Tensor& dsums, const SlotTensors& d,
                   const SlotSequences* spans = nullptr) {
  auto call = fast_call<slot_attention_fast::Backward>(context, in, spans);
  const Tensor readable = d_o.defined() ? aligned(d_o) : d_o;
  call.d_o = call.v;
  call.d_o.T = 0;
  if (d_o.defined()) call.d_o = view_of<const kernel_bf16>(readable);
  call.dkeys_out = pointer_or_null<const float>(dend.keys);
  call.dvalues_out = pointer_or_null<const float>(dend.values);
  call.dsums = pointer<float>(dsums);
  call.dq = view_of<kernel_bf16>(d.q);
  call.dk = view_of<kernel_bf16>(d.k);
  call.dv = view_of<kernel_bf16>(d.v);
  call.dlogits = view_of<kernel_bf16>(d.logits);
  call.dkeys_in = pointer_or_null<float>(d.keys);
  call.dvalues_in = pointer_or_null<float>(d.values);
  slot_attention_fast::backward(call);
}

}  // namespace

void slot_attention_causal_forward(const SlotAttentionContext& context, const SlotTensors& in,
                                   const SlotTensors& end, const Tensor& o) {
  if (is_slot_attention_step(context, in)) return slot_attention_step(context, in, end, o);
  if (in.path == CallPath::tensor_cores) return fast_forward(context, in, end, o);
  const int64_t N = in.logits.size(3);
  const SlotSequences rows = rows_of(in.q, N);
  const SlotWeights weights = slot_weights(context, rows, in.logits, in.mass, end.mass);
  SlotScan keys = scan_of(rows, in.k, context.key_mask, weights);
  keys.reader = in.q;
  keys.reader_mask = context.query_mask;
  keys.before = in.keys;
  keys.after = end.keys;
  const Tensor reads = slots_like(in.q, N);
  scan_slots(keys, reads);
  slot_softmax(context, weights.factors, reads);
  SlotScan values =
      scan_of(rows, in.v, context.key_mask, value_weights(context, rows, in, weights));
  values.reader_mask = context.query_mask;
  values.before = in.values;
  values.after = end.values;
  scan_channels(values, reads, o);
}

void slot_attention_causal_backward(const SlotAttentionContext& context, const SlotTensors& in,
                                    const SlotTensors& end, const Tensor& d_o,
                                    const SlotTensors& dend, const SlotTensors& d) {
  const auto sums_gradient = [&] {
    return slot_sums_gradient(context.options, {end.keys, end.values, dend.keys, dend.values},
                              dend.mass);
  };
  const auto finish = [&](const Tensor& dsums) {
    if (!d.mass.defined()) return;
    slot_mass_gradient(context.options, {in.keys, in.values, d.keys, d.values}, dsums, d.mass);
  };
  if (in.path == CallPath::tensor_cores) {
    const Tensor dsums = sums_gradient();
    fast_backward(context, in, d_o, dend, dsums, d);
    return finish(dsums);
  }
  const int64_t N = in.logits.size(3);
  const SlotSequences rows = rows_of(in.q, N);
  const SlotWeights weights = slot_weights(context, rows, in.logits, in.mass, {});
  const SlotWeights of_values = value_weights(context, rows, in, weights);
  SlotScan keys = scan_of(rows, in.k, context.key_mask, weights);
  SlotScan values = scan_of(rows, in.v, context.key_mask, of_values);
  keys.reader = in.q;
  values.reader = d_o;
  keys.reader_mask = values.reader_mask = context.query_mask;
  keys.before = in.keys;
  values.before = in.values;
  const Tensor to_keys = slots_like(in.q, N), to_values = slots_like(in.q, N);
  scan_slots(keys, to_keys);
  scan_slots(values, to_values);
  const Tensor to_sums = slot_read_gradients(context, weights.factors, to_keys, to_values);
  scan_channels(keys, to_keys, d.q);

  const Tensor dsums = sums_gradient();
  keys.before = dend.keys;
  values.before = dend.values;
  keys.after = d.keys;
  values.after = d.values;
  reverse_scan_channels(keys, to_keys, d.k);
  reverse_scan_channels(values, to_values, d.v);
  const Tensor dweights = slots_like(in.q, N);
  reverse_scan_slots(keys, to_keys, dweights, false);
  if (in.value_logits.defined()) {
    const Tensor dvalue_weights = slots_like(in.q, N);
    reverse_scan_slots(values, to_values, dvalue_weights, false);
    slot_logit_gradients(context, rows, of_values, dvalue_weights, {}, dsums, d.value_logits);
  } else {
    reverse_scan_slots(values, to_values, dweights, true);
  }
  slot_logit_gradients(context, rows, weights, dweights, to_sums, dsums, d.logits);
  finish(dsums);
}

void slot_attention_memory_forward(const SlotAttentionContext& context, const SlotTensors& in,
                                   const std::vector<Span>& spans, const SlotTensors& memory) {
  const SlotSequences sequences = spans_of(spans, in.k, in.logits.size(3));
  if (in.path == CallPath::tensor_cores) return fast_forward(context, in, memory, {}, &sequences);
  const SlotWeights weights = slot_weights(context, sequences, in.logits, {}, memory.mass);
  SlotScan keys = scan_of(sequences, in.k, context.key_mask, weights);
  SlotScan values = scan_of(sequences, in.v, context.key_mask, weights);
  keys.after = memory.keys;
  values.after = memory.values;
  scan_slots(keys, {});
  scan_slots(values, {});
}

void slot_attention_memory_backward(const SlotAttentionContext& context, const SlotTensors& in,
                                    const std::vector<Span>& spans, const SlotTensors& memory,
                                    const SlotTensors& dmemory, const SlotTensors& d) {
  const Tensor dsums = slot_sums_gradient(
      context.options, {memory.keys, memory.values, dmemory.keys, dmemory.values}, dmemory.mass);
  const SlotSequences sequences = spans_of(spans, in.k, in.logits.size(3));
  if (in.path == CallPath::tensor_cores) {
    return fast_backward(context, in, {}, dmemory, dsums, d, &sequences);
  }
  const SlotWeights weights = slot_weights(context, sequences, in.logits, {}, {});
  SlotScan keys = scan_of(sequences, in.k, context.key_mask, weights);
  SlotScan values = scan_of(sequences, in.v, context.key_mask, weights);
  keys.before = dmemory.keys;
  values.before = dmemory.values;
  reverse_scan_channels(keys, {}, d.k);
  reverse_scan_channels(values, {}, d.v);
  const Tensor dweights = slots_like(in.k, sequences.N);
  reverse_scan_slots(keys, {}, dweights, false);
  reverse_scan_slots(values, {}, dweights, true);
  slot_logit_gradients(context, sequences, weights, dweights, {}, dsums, d.logits);
}

void slot_attention_read_forward(const SlotAttentionContext& context, const SlotTensors& in,
                                 const std::vector<Span>& spans, const Tensor& o) {
  const SlotSequences sequences = spans_of(spans, in.q, in.keys.size(2));
  if (in.path == CallPath::tensor_cores) return fast_forward(context, in, {}, o, &sequences);
  const Tensor reads = slots_like(in.q, sequences.N);
  const Tensor factors = slot_read_factors(context.options, sequences, in.mass, reads.shape());
  SlotScan keys = read_of(sequences, in.q, context.query_mask);
  keys.before = in.keys;
  scan_slots(keys, reads);
  slot_softmax(context, factors, reads);
  SlotScan values = read_of(sequences, o, context.query_mask);
  values.before = in.values;
  scan_channels(values, reads, o);
}

void slot_attention_read_backward(const SlotAttentionContext& context, const SlotTensors& in,
                                  const std::vector<Span>& spans, const Tensor& d_o,
                                  const SlotTensors& d) {
  const SlotSequences sequences = spans_of(spans, in.q, in.keys.size(2));
  if (in.path == CallPath::tensor_cores) {
    fast_backward(context, in, d_o, {}, Tensor::zeros(in.mass.shape(), DType::f32, d_o.device()), d,
                  &sequences);
    return d.mass.set_zero();  // means do not depend on it
  }
  const Tensor to_keys = slots_like(in.q, sequences.N), to_values = slots_like(in.q, sequences.N);
  const Tensor factors = slot_read_factors(context.options, sequences, in.mass, to_keys.shape());
  SlotScan keys = read_of(sequences, in.q, context.query_mask);
  SlotScan values = read_of(sequences, d_o, context.query_mask);
  keys.before = in.keys;
  values.before = in.values;
  scan_slots(keys, to_keys);
  scan_slots(values, to_values);
  const Tensor to_sums = slot_read_gradients(context, factors, to_keys, to_values);
  scan_channels(keys, to_keys, d.q);
  keys.before = values.before = Tensor();
  keys.after = d.keys;
  values.after = d.values;
  reverse_scan_channels(keys, to_keys, {});
  reverse_scan_channels(values, to_values, {});
  slot_read_mass_gradient(context.options, sequences, to_sums, d.mass);
}

}  // namespace linnet::cuda
