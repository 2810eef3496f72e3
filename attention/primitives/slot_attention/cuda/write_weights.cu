// Write-time normalisation of slot weights: w_t = alpha_t / sum_{j <= t} alpha_j.
#include "attention/primitives/common/cuda/warp_items.h"
#include "attention/primitives/slot_attention/cuda/slot_attention.h"
#include "attention/primitives/slot_attention/cuda/weights.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

SlotAttentionContext normalised(SlotAttentionContext context) {
  require(context.options.control != SlotControl::given,
          "slot_write_weights: given weights are not normalised; control must be exp, sigmoid or "
          "relu");
  context.options.normalizer = SlotNormalizer::read_time;
  return context;
}

SlotSequences rows_of(const Tensor& logits) {
  return {nullptr, logits.size(0), logits.size(1), logits.size(2), logits.size(3)};
}

template <typename T>
void backward_typed(const SlotAttentionContext& context, const SlotSequences& rows,
                    const SlotWeights& of, const Tensor& dresults, const Tensor& dafter,
                    const Tensor& to, const Tensor& dbefore) {
  const SlotAttentionOptions options = context.options;
  const auto* key_mask = pointer_or_null<const uint8_t>(context.key_mask);
  const auto *weights = pointer<const float>(of.weights), *decays = pointer<const float>(of.decays);
  const auto *factors = pointer<const float>(of.factors),
             *dweights = pointer<const float>(dresults);
  const auto* dmass_out = pointer_or_null<const double>(dafter);
  T* dlogits = pointer<T>(to);
  auto* dmass_in = pointer_or_null<double>(dbefore);
  for_each("slot_write_weights", rows.slots(), [=] __device__(int64_t item) {
    const SlotSequences::Slot slot = rows.slot(item);
    // The gradient of the (log) sum after a token, on its way to before the row.
    float dmass = dmass_out != nullptr ? static_cast<float>(dmass_out[item]) : 0.0f;
    for (int64_t t = rows.T - 1; t >= 0; --t) {
      const int64_t i = rows.index(slot, t);
      float dlogit = 0;
      if (is_set(key_mask, slot.row * rows.T + t)) {
        const float given = dweights[i], alpha = weights[i], factor = factors[i];
        if (options.control == SlotControl::exp) {
          // z' = log(e^z + e^a): dz'/da = w, dz'/dz = 1 - w, and w = e^(a - z').
          dmass -= given * alpha;
          dlogit = alpha * (given + dmass);
        } else {
          if (!is_clamped(options, factor)) dmass -= given * alpha * factor * factor;
          dlogit = weight_slope(options.control, alpha) * (given * factor + dmass);
        }
      }
      store(dlogits + i, dlogit);
      dmass = decayed(decays[i], dmass);
    }
    if (dmass_in != nullptr) dmass_in[item] = dmass;
  });
}

}  // namespace

void slot_write_weights_forward(const SlotAttentionContext& context, const Tensor& logits,
                                const Tensor& mass_in, const Tensor& mass_out,
                                const Tensor& weights) {
  const SlotWeights found =
      slot_weights(normalised(context), rows_of(logits), logits, mass_in, mass_out);
  const float* alpha = pointer<float>(found.weights);
  const float* factors = pointer<float>(found.factors);
  float* to = pointer<float>(weights);
  for_each("slot_write_weights", weights.elements(),
           [=] __device__(int64_t i) { to[i] = alpha[i] * factors[i]; });
}

void slot_write_weights_backward(const SlotAttentionContext& context, const Tensor& logits,
                                 const Tensor& mass_in, const Tensor& dweights,
                                 const Tensor& dmass_out, const Tensor& dlogits,
                                 const Tensor& dmass_in) {
  const SlotAttentionContext at_once = normalised(context);
  const SlotWeights found = slot_weights(at_once, rows_of(logits), logits, mass_in, {});
  dispatch(dlogits.dtype(), [&](auto zero) {
    backward_typed<decltype(zero)>(at_once, rows_of(logits), found, dweights, dmass_out, dlogits,
                                   dmass_in);
  });
}

Tensor used_slots(const Tensor& mass, double empty) {
  const Tensor used = Tensor::empty(mass.shape(), DType::f64, mass.device());
  const double* from = pointer<double>(mass);
  double* to = pointer<double>(used);
  for_each("used_slots", mass.elements(),
           [=] __device__(int64_t i) { to[i] = from[i] == empty ? 0 : 1; });
  return used;
}

}  // namespace linnet::cuda
