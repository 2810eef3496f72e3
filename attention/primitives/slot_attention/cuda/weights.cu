// Slot attention: from control logits to weights and normalizers, and back. One thread per slot.
#include "attention/primitives/common/cuda/warp_items.h"
#include "attention/primitives/slot_attention/cuda/weights.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

template <typename T>
void weights_typed(const SlotAttentionContext& context, const SlotSequences& sequences,
                   const Tensor& from, const Tensor& before, const Tensor& after,
                   const SlotWeights& out) {
  const SlotAttentionOptions options = context.options;
  const T* logits = pointer<const T>(from);
  const auto* key_mask = pointer_or_null<const uint8_t>(context.key_mask);
  // Spans split rows already.
  const auto* segments =
      pointer_or_null<const int32_t>(sequences.spans != nullptr ? Tensor() : context.segments);
  const auto* mass_in = pointer_or_null<const double>(before);
  auto* mass_out = pointer_or_null<double>(after);
  auto *weights = pointer<float>(out.weights), *decays = pointer<float>(out.decays);
  auto* factors = pointer<float>(out.factors);
  for_each("slot_weights", sequences.slots(), [=] __device__(int64_t item) {
    const SlotSequences::Slot slot = sequences.slot(item);
    const int64_t begin = sequences.begin(slot.n);
    double mass = mass_in != nullptr ? mass_in[item] : empty_normalizer(options);
    for (int64_t t = begin; t < sequences.end(slot.n); ++t) {
      const int64_t place = slot.row * sequences.T + t, i = sequences.index(slot, t);
      const bool fresh = segments != nullptr && t > begin && segments[place] != segments[place - 1];
      if (fresh) mass = empty_normalizer(options);
      SlotWrite write{0, 1};
      if (is_set(key_mask, place)) write = write_to_slot(options, load(logits + i), mass);
      weights[i] = write.weight;
      decays[i] = fresh ? 0.0f : write.decay;
      factors[i] = read_factor(options, mass);
    }
    if (mass_out != nullptr) mass_out[item] = mass;
  });
}

template <typename T>
void logit_gradients_typed(const SlotAttentionContext& context, const SlotSequences& sequences,
                           const SlotWeights& of, const Tensor& given, const Tensor& sums,
                           const Tensor& carried, const Tensor& to) {
  const SlotControl control = context.options.control;
  const auto* key_mask = pointer_or_null<const uint8_t>(context.key_mask);
  const auto *weights = pointer<const float>(of.weights), *decays = pointer<const float>(of.decays);
  const auto *dweights = pointer<const float>(given), *to_sums = pointer_or_null<const float>(sums);
  auto* dsums = pointer<float>(carried);
  T* dlogits = pointer<T>(to);
  for_each("slot_logit_gradients", sequences.slots(), [=] __device__(int64_t item) {
    const SlotSequences::Slot slot = sequences.slot(item);
    float dsum = dsums[item];
    for (int64_t t = sequences.end(slot.n) - 1; t >= sequences.begin(slot.n); --t) {
      const int64_t i = sequences.index(slot, t);
      if (to_sums != nullptr) dsum += to_sums[i];
      const bool written = is_set(key_mask, slot.row * sequences.T + t);
      store(dlogits + i, written ? weight_slope(control, weights[i]) * (dweights[i] + dsum) : 0.0f);
      dsum = decayed(decays[i], dsum);
    }
    dsums[item] = dsum;
  });
}

// A memory and its gradient, of which null is zero.
struct SlotStates {
  const float *keys, *values, *dkeys, *dvalues;
  int64_t K, V;

  SlotStates(const SlotAttentionTensors& of, const SlotAttentionTensors& d)
      : keys(pointer<float>(of.keys)),
        values(pointer<float>(of.values)),
        dkeys(pointer_or_null<float>(d.keys)),
        dvalues(pointer_or_null<float>(d.values)),
        K(of.keys.size(3)),
        V(of.values.size(3)) {}
  // sum of dkeys keys + dvalues values of a slot.
  __device__ float products(int64_t slot) const {
    float total = 0;
    if (dkeys != nullptr) total += dot(keys + slot * K, dkeys + slot * K, K);
    if (dvalues != nullptr) total += dot(values + slot * V, dvalues + slot * V, V);
    return total;
  }
};

}  // namespace

SlotWeights slot_weights(const SlotAttentionContext& context, const SlotSequences& sequences,
                         const Tensor& logits, const Tensor& mass_in, const Tensor& mass_out) {
  const auto empty = [&] { return Tensor::empty(logits.shape(), DType::f32, logits.device()); };
  const SlotWeights out{empty(), empty(), empty()};
  dispatch(logits.dtype(), [&](auto zero) {
    weights_typed<decltype(zero)>(context, sequences, logits, mass_in, mass_out, out);
  });
  return out;
}

Tensor slot_read_factors(const SlotAttentionOptions& options, const SlotSequences& sequences,
                         const Tensor& mass, const Shape& shape) {
  const Tensor factors = Tensor::empty(shape, DType::f32, mass.device());
  const double* from = pointer<double>(mass);
  float* to = pointer<float>(factors);
  for_each("slot_read_factors", mass.elements(), [=] __device__(int64_t item) {
    const SlotSequences::Slot slot = sequences.slot(item);
    const float factor = read_factor(options, from[item]);
    for (int64_t t = sequences.begin(slot.n); t < sequences.end(slot.n); ++t) {
      to[sequences.index(slot, t)] = factor;
    }
  });
  return factors;
}

void slot_logit_gradients(const SlotAttentionContext& context, const SlotSequences& sequences,
                          const SlotWeights& weights, const Tensor& dweights, const Tensor& to_sums,
                          const Tensor& dsums, const Tensor& dlogits) {
  dispatch(dlogits.dtype(), [&](auto zero) {
    logit_gradients_typed<decltype(zero)>(context, sequences, weights, dweights, to_sums, dsums,
                                          dlogits);
  });
}

Tensor slot_sums_gradient(const SlotAttentionOptions& options, const SlotAttentionTensors& end,
                          const SlotAttentionTensors& dend) {
  const Tensor dsums = Tensor::zeros({end.keys.size(0), end.keys.size(1), end.keys.size(2)},
                                     DType::f32, end.keys.device());
  if (options.normalizer == SlotNormalizer::none) return dsums;
  const bool log_space = options.control == SlotControl::exp;
  const SlotStates states(end, dend);
  const double* from = pointer_or_null<double>(dend.mass);
  float* to = pointer<float>(dsums);
  for_each("slot_sums_gradient", dsums.elements(), [=] __device__(int64_t i) {
    const float given = from != nullptr ? static_cast<float>(from[i]) : 0.0f;
    to[i] = log_space ? given - states.products(i) : given;
  });
  return dsums;
}

void slot_mass_gradient(const SlotAttentionOptions& options, const SlotAttentionTensors& start,
                        const Tensor& dsums, const SlotAttentionTensors& dstart) {
  const bool log_space = options.control == SlotControl::exp;
  const SlotStates states(start, dstart);
  const float* from = pointer<float>(dsums);
  double* to = pointer<double>(dstart.mass);
  for_each("slot_mass_gradient", dstart.mass.elements(), [=] __device__(int64_t i) {
    to[i] = log_space ? from[i] + states.products(i) : from[i];
  });
}

void slot_read_mass_gradient(const SlotAttentionOptions& options, const SlotSequences& sequences,
                             const Tensor& to_sums, const Tensor& dmass) {
  // Means in log space do not depend on the normalizer.
  if (options.control == SlotControl::exp) return dmass.set_zero();
  const float* from = pointer<float>(to_sums);
  double* to = pointer<double>(dmass);
  for_each("slot_read_mass_gradient", dmass.elements(), [=] __device__(int64_t item) {
    const SlotSequences::Slot slot = sequences.slot(item);
    double total = 0;
    for (int64_t t = sequences.begin(slot.n); t < sequences.end(slot.n); ++t) {
      total += from[sequences.index(slot, t)];
    }
    to[item] = total;
  });
}

}  // namespace linnet::cuda
