// Write-time weights of slot attention on Variables, and which slots hold anything.
#include "attention/primitives/slot_attention_arrays.h"

namespace linnet::slot_attention_detail {

std::vector<Variable> write_weights(const Variable& logits, const Variable& mass,
                                    const SlotAttentionContext& context) {
  const Device device = logits.value().device();
  const DType dtype = computing_type({logits});
  const Tensor from = converted_logits(logits, dtype, device);
  const Tensor mass_in = converted(mass, DType::f64, device);
  require(from.shape().rank() == 4, "slot attention: expected logits [B,T,H,N], got ",
          from.shape());
  check_tokens(context.key_mask, from, "key_mask");
  check_tokens(context.segments, from, "segments");
  const Shape mass_shape({from.size(0), from.size(2), from.size(3)});
  require(!mass_in.defined() || mass_in.shape() == mass_shape, "slot attention: expected mass ",
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
  const std::vector<Span> spans = spans_of(context, from, mass_in.defined());
  dispatch(dtype, [&](auto zero) {
    using E = decltype(zero);
    slot_write_weights_forward<E>(context.options, view_of<E>(from), mask_of(context.key_mask),
                                  spans, pointer<double>(mass_in), mass_out.data<double>(),
                                  view_of<E>(weights));
  });
  const auto back = [context, from, mass_in, spans, dtype](Gradients& gradients) {
    const Tensor dweights = gradients.output(0).to(dtype), dmass = output_or_none(gradients, 1);
    const Tensor dlogits = empty_like(from), dmass_in = empty_like(mass_in);
    dispatch(dtype, [&](auto zero) {
      using E = decltype(zero);
      slot_write_weights_backward<E>(context.options, view_of<E>(from), mask_of(context.key_mask),
                                     spans, pointer<double>(mass_in), view_of<E>(dweights),
                                     pointer<double>(dmass), view_of<E>(dlogits),
                                     pointer<double>(dmass_in));
    });
    add_all(gradients, {dlogits, dmass_in});
  };
  return record_many("slot_write_weights", {weights, mass_out}, {logits, mass}, back);
}

Variable used_slots(const Variable& mass, const SlotAttentionOptions& options) {
  if (!mass.defined()) return Variable();
  const Tensor from = mass.value().to(DType::f64);
  if constexpr (kCuda) {
    if (on_cuda(from)) return Variable(cuda::used_slots(from, slot_empty_mass(options)));
  }
  const Tensor used = Tensor::empty(from.shape(), DType::f64);
  const double empty = slot_empty_mass(options);
  for (int64_t i = 0; i < from.elements(); ++i) {
    used.data<double>()[i] = from.data<double>()[i] == empty ? 0 : 1;
  }
  return Variable(used);
}

}  // namespace linnet::slot_attention_detail
