// The mixers over slots: the primitive of each form, and the decode state.
#include "attention/common/slot_support.h"

#include "attention/common/tree_support.h"
#include "attention/primitives/slot_attention/tree.h"
#include "autograd/embedding.h"

namespace linnet {
namespace {

// Name of the normalizer in a state, and whether it has a gradient. With a given control it is the
// number of tokens or, where nothing is divided by it, a flag of the slots in use.
struct NormalizerEntry {
  const char* name;
  bool differentiable;
};
NormalizerEntry normalizer_entry(const SlotMixing& mixing) {
  if (mixing.options.normalizer == SlotNormalizer::none) return {"used", false};
  if (mixing.options.control == SlotControl::given) return {"count", false};
  return {"mass", true};
}

MixerState to_state(const SlotMixing& mixing, const SlotMemory& memory) {
  MixerState state;
  if (memory.keys.defined()) state = {{"K", memory.keys}, {"V", memory.values}};
  if (memory.value_mass.defined()) state["value_mass"] = memory.value_mass;
  const NormalizerEntry entry = normalizer_entry(mixing);
  if (entry.differentiable) {
    state[entry.name] = memory.mass;
    return state;
  }
  const Tensor& normalizer = memory.mass.value();
  const bool divides = mixing.options.normalizer == SlotNormalizer::read_time;
  state[entry.name] =
      Variable((divides ? normalizer : used_slots(normalizer, mixing.options)).to(DType::i64));
  return state;
}

SlotMemory from_state(const SlotMixing& mixing, const MixerState& state, DType dtype) {
  if (state.empty()) return {};
  const NormalizerEntry entry = normalizer_entry(mixing);
  const Variable& normalizer = state.at(entry.name);
  return {carried(state, "K", dtype), carried(state, "V", dtype),
          entry.differentiable ? as_dtype(normalizer, DType::f64)
                               : Variable(normalizer.value().to(DType::f64)),
          carried(state, "value_mass", DType::f64)};
}

// x [B,S,H,.] as keys of a memory, written by `controls`; no values.
SlotMemory memory_of(const Variable& x, const Variable& controls,
                     const SlotAttentionContext& context) {
  const Tensor nothing =
      Tensor::empty({x.size(0), x.size(1), x.size(2), 0}, x.dtype(), x.value().device());
  return slot_attention_memory({{}, x, Variable(nothing), controls}, context);
}

}  // namespace

AttentionMixer::MixResult slot_mix(const SlotMixing& mixing, const MixerOptions& options,
                                   const MixInput& input, const MixerContext& context,
                                   const MixerState& state, const SlotControls& controls,
                                   const SlotControls& value_controls) {
  const bool cross = options.form == Form::cross;
  SlotAttentionContext at;
  at.options = mixing.options;
  at.write_time = mixing.write_time && options.form == Form::causal;
  at.accumulate = mixing.accumulate;
  at.place = context.place;
  at.query_mask = context.key_mask;
  at.key_mask = cross ? context.source_mask : context.key_mask;
  if (!cross) at.segments = context.segments;
  SlotAttentionVariables variables{input.q, input.k, input.v, {}, {}};
  SlotMemory memory = from_state(mixing, state, sum_dtype(input.q.dtype()));
  if (options.form == Form::causal) {
    variables.logits = controls();
    if (value_controls) variables.value_logits = value_controls();
    SlotAttentionResult result = slot_attention_causal(variables, at, memory);
    return {result.o, to_state(mixing, result.state)};
  }
  if (state.empty()) {
    variables.logits = controls();
    if (value_controls) {
      memory = memory_of(input.k, variables.logits, at);
      memory.values = memory_of(input.v, value_controls(), at).keys;
    } else {
      memory = slot_attention_memory(variables, at);
    }
  }
  const Variable o = slot_attention_read(variables, memory, at);
  return {o, cross ? to_state(mixing, memory) : MixerState{}};
}

Variable slot_mix_tree(const SlotMixing& mixing, const MixInput& input,
                       std::span<const MixerNode> nodes, const MixerState& state,
                       const SlotControls& controls, const SlotControls& value_controls) {
  SlotAttentionContext at;
  at.options = mixing.options;
  at.write_time = mixing.write_time;
  at.accumulate = mixing.accumulate;
  SlotAttentionVariables variables{input.q, input.k, input.v, controls(), {}};
  if (value_controls) variables.value_logits = value_controls();
  return slot_attention_tree(variables, at, tree_of(nodes),
                             from_state(mixing, state, sum_dtype(input.q.dtype())));
}

Tensor written_positions(const MixerOptions& options, const MixInput& input,
                         const MixerContext& context) {
  if (context.key_positions.defined()) return context.key_positions;
  if (options.form != Form::cross) return context.positions;
  return counted_positions(input.k.size(0), input.k.size(1), 0, input.k.value().device());
}

MixerCost slot_mix_cost(const MixerOptions& options, int64_t slots, const MixerShape& shape) {
  const auto all_slots = static_cast<double>(shape.batch * options.heads * slots);
  const auto widths = static_cast<double>(2 * options.head_width());
  MixerCost cost;
  cost.mixing = all_slots * widths * static_cast<double>(shape.queries + shape.keys);
  if (options.form == Form::noncausal) return cost;
  cost.bytes = all_slots * (widths * size_of(sum_dtype(shape.dtype)) + sizeof(double));
  return cost;
}

std::vector<double> softmax_of_tokens(const ReferenceSequence<double>& s) {
  return softmax_attention_reference(
      s, 1 / std::sqrt(static_cast<double>(s.K)), [](int64_t, int64_t) { return true; },
      [](int64_t, int64_t, int64_t) { return 0.0; });
}

std::vector<double> mean_of_values(const ReferenceSequence<double>& s) {
  return linear_attention_definition(
      s, [](int64_t, int64_t, int64_t) { return 1.0; }, [](double x) { return x; });
}

}  // namespace linnet
