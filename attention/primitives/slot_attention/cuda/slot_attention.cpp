// Slot attention on a CUDA device: in which order the steps are taken.
#include "attention/primitives/slot_attention/cuda/slot_attention.h"

#include "attention/primitives/slot_attention/cuda/fast.h"
#include "attention/primitives/slot_attention/cuda/kernels.h"
#include "attention/primitives/slot_attention/cuda/step.h"
#include "attention/tensor_core/aligned_views.h"

namespace linnet::cuda {
namespace {

SlotSequences sequences_of(const SlotAttentionTensors& in) {
  const Tensor& some = in.q.defined() ? in.q : in.k;
  return {pointer_or_null<const int32_t>(in.spans), (in.spans.defined() ? in.spans : some).size(0),
          some.size(1), some.size(2), in.logits.defined() ? in.logits.size(3) : in.keys.size(2)};
}

// A write of x by these weights, and a read by `reader`; undefined tensors as in SlotScan.
SlotScan scan_of(const SlotAttentionContext& context, const SlotSequences& sequences,
                 const Tensor& x, const SlotWeights& weights, const Tensor& reader,
                 const Tensor& before, const Tensor& after) {
  const Tensor& some = x.defined() ? x : reader;
  SlotScan scan{};
  scan.sequences = sequences;
  scan.dtype = some.dtype();
  scan.width = some.size(3);
  dispatch(scan.dtype, [&](auto zero) {
    scan.x = pointer_or_null<const decltype(zero)>(x);
    scan.reader = pointer_or_null<const decltype(zero)>(reader);
  });
  scan.x_mask = pointer_or_null<const uint8_t>(context.key_mask);
  scan.reader_mask = pointer_or_null<const uint8_t>(context.query_mask);
  scan.weights = pointer_or_null<const float>(weights.weights);
  scan.decays = pointer_or_null<const float>(weights.decays);
  scan.before = pointer_or_null<const float>(before);
  scan.after = pointer_or_null<float>(after);
  return scan;
}

// The weights of values, where they have logits of their own (which are not normalised).
SlotWeights value_weights(const SlotAttentionContext& context, const SlotSequences& rows,
                          const SlotAttentionTensors& in, const SlotWeights& of_keys) {
  if (!in.value_logits.defined()) return of_keys;
  return slot_weights(context, rows, in.value_logits, {}, {});
}

Tensor slots_like(const Tensor& sequence, int64_t N) {
  return Tensor::empty({sequence.size(0), sequence.size(1), sequence.size(2), N}, DType::f32,
                       sequence.device());
}

template <typename E>
SlotAttentionState<E> state_of(const SlotAttentionTensors& x) {
  return {pointer_or_null<E>(x.keys), pointer_or_null<E>(x.values),
          pointer_or_null<typename SlotAttentionState<E>::Mass>(x.mass)};
}

// What both passes on tensor cores are given. Sequences that a call lacks are views of no tokens.
template <typename Pass>
Pass fast_call(const SlotAttentionContext& context, const SlotAttentionTensors& in) {
  const SlotAttentionOptions& options = context.options;
  const SlotSequences sequences = sequences_of(in);
  const Tensor& some = in.q.defined() ? in.q : in.k;
  const auto view = [&](const Tensor& x, int64_t width) {
    if (x.defined() && x.elements() > 0) return view_of<const kernel_bf16>(x);
    return slot_attention_fast::Reads(pointer<const kernel_bf16>(some), some.size(0), 0,
                                      some.size(2), width);
  };
  Pass call;
  call.device = some.device();
  call.reading = {static_cast<float>(options.scale), options.mask_empty};
  call.dropout = {RowDropout(options.dropout, options.dropout_key, sequences.H * sequences.N),
                  pointer_or_null<const int64_t>(context.place.examples), context.place.time_offset,
                  options.dropout > 0};
  call.given = {options.control == SlotControl::given,
                options.normalizer == SlotNormalizer::read_time, static_cast<float>(options.floor)};
  call.q = view(in.q, some.size(3));
  call.k = view(in.k, some.size(3));
  call.v = in.v.defined() ? view(in.v, 0) : view({}, in.values.size(3));
  call.logits = view(in.logits, sequences.N);
  call.query_mask = pointer_or_null<const uint8_t>(context.query_mask);
  call.key_mask = pointer_or_null<const uint8_t>(context.key_mask);
  const bool causal = in.q.defined() && in.k.defined();
  if (causal) call.segments = pointer_or_null<const int32_t>(context.segments);
  call.spans = {sequences.spans, sequences.count};
  call.state_in = state_of<const float>(in);
  return call;
}

void fast_forward(const SlotAttentionContext& context, const SlotAttentionTensors& in,
                  const SlotAttentionTensors& end, const Tensor& o) {
  auto call = fast_call<slot_attention_fast::Forward>(context, in);
  call.state_out = state_of<float>(end);
  call.o = view_of<kernel_bf16>(o);
  slot_attention_fast::forward(call);
}

// dsums as slot_sums_gradient makes it.
void fast_backward(const SlotAttentionContext& context, const SlotAttentionTensors& in,
                   const Tensor& d_o, const SlotAttentionTensors& dend, const Tensor& dsums,
                   const SlotAttentionTensors& d) {
  auto call = fast_call<slot_attention_fast::Backward>(context, in);
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

void slot_attention_causal_forward(const SlotAttentionContext& context,
                                   const SlotAttentionTensors& in, const SlotAttentionTensors& end,
                                   const Tensor& o) {
  if (is_slot_attention_step(context, in)) return slot_attention_step(context, in, end, o);
  if (in.path == CallPath::tensor_cores) return fast_forward(context, in, end, o);
  const SlotSequences rows = sequences_of(in);
  const SlotWeights weights = slot_weights(context, rows, in.logits, in.mass, end.mass);
  const Tensor reads = slots_like(in.q, rows.N);
  scan_slots(scan_of(context, rows, in.k, weights, in.q, in.keys, end.keys), reads);
  slot_softmax(context, weights.factors, reads);
  scan_channels(scan_of(context, rows, in.v, value_weights(context, rows, in, weights), {},
                        in.values, end.values),
                reads, o);
}

void slot_attention_causal_backward(const SlotAttentionContext& context,
                                    const SlotAttentionTensors& in, const SlotAttentionTensors& end,
                                    const Tensor& d_o, const SlotAttentionTensors& dend,
                                    const SlotAttentionTensors& d) {
  const Tensor dsums = slot_sums_gradient(context.options, end, dend);
  const auto finish = [&] {
    if (d.mass.defined()) slot_mass_gradient(context.options, in, dsums, d);
  };
  if (in.path == CallPath::tensor_cores) {
    fast_backward(context, in, d_o, dend, dsums, d);
    return finish();
  }
  const SlotSequences rows = sequences_of(in);
  const SlotWeights weights = slot_weights(context, rows, in.logits, in.mass, {});
  const SlotWeights of_values = value_weights(context, rows, in, weights);
  const SlotScan reads = scan_of(context, rows, in.k, weights, in.q, in.keys, {});
  const Tensor to_keys = slots_like(in.q, rows.N), to_values = slots_like(in.q, rows.N);
  scan_slots(reads, to_keys);
  scan_slots(scan_of(context, rows, in.v, of_values, d_o, in.values, {}), to_values);
  const Tensor to_sums = slot_read_gradients(context, weights.factors, to_keys, to_values);
  scan_channels(reads, to_keys, d.q);

  const SlotScan keys = scan_of(context, rows, in.k, weights, in.q, dend.keys, d.keys);
  const SlotScan values = scan_of(context, rows, in.v, of_values, d_o, dend.values, d.values);
  reverse_scan_channels(keys, to_keys, d.k);
  reverse_scan_channels(values, to_values, d.v);
  const Tensor dweights = slots_like(in.q, rows.N);
  reverse_scan_slots(keys, to_keys, dweights, false);
  if (in.value_logits.defined()) {
    const Tensor dvalue_weights = slots_like(in.q, rows.N);
    reverse_scan_slots(values, to_values, dvalue_weights, false);
    slot_logit_gradients(context, rows, of_values, dvalue_weights, {}, dsums, d.value_logits);
  } else {
    reverse_scan_slots(values, to_values, dweights, true);
  }
  slot_logit_gradients(context, rows, weights, dweights, to_sums, dsums, d.logits);
  finish();
}

void slot_attention_memory_forward(const SlotAttentionContext& context,
                                   const SlotAttentionTensors& in,
                                   const SlotAttentionTensors& memory) {
  if (in.path == CallPath::tensor_cores) return fast_forward(context, in, memory, {});
  const SlotSequences sequences = sequences_of(in);
  const SlotWeights weights = slot_weights(context, sequences, in.logits, {}, memory.mass);
  scan_slots(scan_of(context, sequences, in.k, weights, {}, {}, memory.keys), {});
  scan_slots(scan_of(context, sequences, in.v, weights, {}, {}, memory.values), {});
}

void slot_attention_memory_backward(const SlotAttentionContext& context,
                                    const SlotAttentionTensors& in,
                                    const SlotAttentionTensors& memory,
                                    const SlotAttentionTensors& dmemory,
                                    const SlotAttentionTensors& d) {
  const Tensor dsums = slot_sums_gradient(context.options, memory, dmemory);
  if (in.path == CallPath::tensor_cores) {
    return fast_backward(context, in, {}, dmemory, dsums, d);
  }
  const SlotSequences sequences = sequences_of(in);
  const SlotWeights weights = slot_weights(context, sequences, in.logits, {}, {});
  const SlotScan keys = scan_of(context, sequences, in.k, weights, {}, dmemory.keys, {});
  const SlotScan values = scan_of(context, sequences, in.v, weights, {}, dmemory.values, {});
  reverse_scan_channels(keys, {}, d.k);
  reverse_scan_channels(values, {}, d.v);
  const Tensor dweights = slots_like(in.k, sequences.N);
  reverse_scan_slots(keys, {}, dweights, false);
  reverse_scan_slots(values, {}, dweights, true);
  slot_logit_gradients(context, sequences, weights, dweights, {}, dsums, d.logits);
}

void slot_attention_read_forward(const SlotAttentionContext& context,
                                 const SlotAttentionTensors& in, const Tensor& o) {
  if (in.path == CallPath::tensor_cores) return fast_forward(context, in, {}, o);
  const SlotSequences sequences = sequences_of(in);
  const Tensor reads = slots_like(in.q, sequences.N);
  const Tensor factors = slot_read_factors(context.options, sequences, in.mass, reads.shape());
  scan_slots(scan_of(context, sequences, {}, {}, in.q, in.keys, {}), reads);
  slot_softmax(context, factors, reads);
  // Of o only the type and the width.
  scan_channels(scan_of(context, sequences, {}, {}, o, in.values, {}), reads, o);
}

void slot_attention_read_backward(const SlotAttentionContext& context,
                                  const SlotAttentionTensors& in, const Tensor& d_o,
                                  const SlotAttentionTensors& d) {
  if (in.path == CallPath::tensor_cores) {
    const Tensor dsums = Tensor::zeros(in.mass.shape(), DType::f32, d_o.device());
    fast_backward(context, in, d_o, {}, dsums, d);
    if (context.options.control != SlotControl::exp) {
      return slot_mass_gradient(context.options, in, dsums, d);
    }
    return d.mass.set_zero();  // means do not depend on it
  }
  const SlotSequences sequences = sequences_of(in);
  const Tensor to_keys = slots_like(in.q, sequences.N), to_values = slots_like(in.q, sequences.N);
  const Tensor factors = slot_read_factors(context.options, sequences, in.mass, to_keys.shape());
  const SlotScan reads = scan_of(context, sequences, {}, {}, in.q, in.keys, {});
  scan_slots(reads, to_keys);
  scan_slots(scan_of(context, sequences, {}, {}, d_o, in.values, {}), to_values);
  const Tensor to_sums = slot_read_gradients(context, factors, to_keys, to_values);
  scan_channels(reads, to_keys, d.q);
  reverse_scan_channels(scan_of(context, sequences, {}, {}, in.q, {}, d.keys), to_keys, {});
  reverse_scan_channels(scan_of(context, sequences, {}, {}, d_o, {}, d.values), to_values, {});
  slot_read_mass_gradient(context.options, sequences, to_sums, d.mass);
}

Tensor slot_attention_spans(const std::vector<Span>& spans, const Tensor& sequence) {
  const auto count = static_cast<int64_t>(spans.size());
  if (count == sequence.size(0)) return {};  // whole rows
  std::vector<int32_t> bounds;
  for (const Span& span : spans) {
    for (const int64_t number : {span.row, span.begin, span.end}) {
      bounds.push_back(static_cast<int32_t>(number));
    }
  }
  return Tensor::from(bounds, {count, 3}, sequence.device());
}

}  // namespace linnet::cuda
