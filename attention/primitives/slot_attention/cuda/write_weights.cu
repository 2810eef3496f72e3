// Write-time normalisation of slot weights: w_t = alpha_t / sum_{j <= t} alpha_j.
#include "attention/primitives/common/cuda/warp_items.h"
#include "attention/primitives/slot_attention/cuda/sequence.h"
#include "attention/primitives/slot_attention/cuda/slot_attention.h"
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
  return {{}, logits.size(0), logits.size(1), logits.size(2), logits.size(3)};
}

template <typename T>
struct GradientArrays {
  const uint8_t* key_mask;
  const float *weights, *decays, *factors, *dweights;
  const double* dmass_out;
  T* dlogits;
  double* dmass_in;
};

template <typename T>
void backward_typed(const SlotAttentionOptions& options, const SlotSequences& sequences,
                    const GradientArrays<T>& a) {
  const SequenceRanges ranges = ranges_of(sequences);
  for_each("slot_write_weights", ranges.count * ranges.H * ranges.N, [=] __device__(int64_t item) {
    const int64_t l = item % ranges.N, h = item / ranges.N % ranges.H;
    const int64_t row = item / ranges.N / ranges.H;
    // The gradient of the (log) sum after a token, on its way to before the row.
    float dmass = a.dmass_out != nullptr ? static_cast<float>(a.dmass_out[item]) : 0.0f;
    for (int64_t t = ranges.T - 1; t >= 0; --t) {
      const int64_t i = ranges.token(row, t, h) * ranges.N + l;
      float dlogit = 0;
      if (is_set(a.key_mask, row * ranges.T + t)) {
        const float given = a.dweights[i], alpha = a.weights[i], factor = a.factors[i];
        if (options.control == SlotControl::exp) {
          // z' = log(e^z + e^a): dz'/da = w, dz'/dz = 1 - w, and w = e^(a - z').
          dmass -= given * alpha;
          dlogit = alpha * (given + dmass);
        } else {
          if (!is_clamped(options, factor)) dmass -= given * alpha * factor * factor;
          dlogit = weight_slope(options.control, alpha) * (given * factor + dmass);
        }
      }
      store(a.dlogits + i, dlogit);
      dmass = decayed(a.decays[i], dmass);
    }
    if (a.dmass_in != nullptr) a.dmass_in[item] = dmass;
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
    using T = decltype(zero);
    backward_typed<T>(at_once.options, rows_of(logits),
                      {pointer_or_null<uint8_t>(context.key_mask), pointer<float>(found.weights),
                       pointer<float>(found.decays), pointer<float>(found.factors),
                       pointer<float>(dweights), pointer_or_null<double>(dmass_out),
                       pointer<T>(dlogits), pointer_or_null<double>(dmass_in)});
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
