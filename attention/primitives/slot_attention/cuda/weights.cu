// Slot attention: from control logits to weights and normalizers, and back. One thread per slot.
#include "attention/primitives/common/cuda/warp_items.h"
#include "attention/primitives/slot_attention/cuda/sequence.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

template <typename T>
struct WeightArrays {
  const T* logits;
  const uint8_t* key_mask;
  const int32_t* segments;
  const double* mass_in;
  double* mass_out;
  float *weights, *decays, *factors;
};

template <typename T>
void weights_typed(const SlotAttentionContext& context, const SlotSequences& sequences,
                   const WeightArrays<T>& a) {
  const SlotAttentionOptions options = context.options;
  const SequenceRanges ranges = ranges_of(sequences);
  for_each("slot_weights", ranges.count * ranges.H * ranges.N, [=] __device__(int64_t item) {
    const int64_t l = item % ranges.N, h = item / ranges.N % ranges.H;
    const int64_t n = item / ranges.N / ranges.H, row = ranges.row(n), begin = ranges.begin(n);
    double mass = a.mass_in != nullptr ? a.mass_in[item] : empty_normalizer(options);
    for (int64_t t = begin; t < ranges.end(n); ++t) {
      const int64_t place = row * ranges.T + t, i = ranges.token(row, t, h) * ranges.N + l;
      const bool fresh =
          a.segments != nullptr && t > begin && a.segments[place] != a.segments[place - 1];
      if (fresh) mass = empty_normalizer(options);
      SlotWrite write{0, 1};
      if (is_set(a.key_mask, place)) write = write_to_slot(options, load(a.logits + i), mass);
      a.weights[i] = write.weight;
      a.decays[i] = fresh ? 0.0f : write.decay;
      a.factors[i] = read_factor(options, mass);
    }
    if (a.mass_out != nullptr) a.mass_out[item] = mass;
  });
}

template <typename T>
struct LogitGradientArrays {
  const uint8_t* key_mask;
  const float *weights, *decays, *dweights, *to_sums;
  float* dsums;
  T* dlogits;
};

template <typename T>
void logit_gradients_typed(const SlotAttentionOptions& options, const SlotSequences& sequences,
                           const LogitGradientArrays<T>& a) {
  const SequenceRanges ranges = ranges_of(sequences);
  const SlotControl control = options.control;
  for_each("slot_logit_gradients", ranges.count * ranges.H * ranges.N,
           [=] __device__(int64_t item) {
             const int64_t l = item % ranges.N, h = item / ranges.N % ranges.H;
             const int64_t n = item / ranges.N / ranges.H, row = ranges.row(n);
             float dsum = a.dsums[item];
             for (int64_t t = ranges.end(n) - 1; t >= ranges.begin(n); --t) {
               const int64_t i = ranges.token(row, t, h) * ranges.N + l;
               if (a.to_sums != nullptr) dsum += a.to_sums[i];
               const bool written = is_set(a.key_mask, row * ranges.T + t);
               store(a.dlogits + i,
                     written ? weight_slope(control, a.weights[i]) * (a.dweights[i] + dsum) : 0.0f);
               dsum = decayed(a.decays[i], dsum);
             }
             a.dsums[item] = dsum;
           });
}

// sum of dkeys keys + dvalues values of a slot.
struct StateArrays {
  const float *keys, *values, *dkeys, *dvalues;
  int64_t K, V;
  __device__ float products(int64_t slot) const {
    float total = 0;
    if (dkeys != nullptr) total += dot(keys + slot * K, dkeys + slot * K, K);
    if (dvalues != nullptr) total += dot(values + slot * V, dvalues + slot * V, V);
    return total;
  }
};

StateArrays arrays_of(const SlotStates& states) {
  return {pointer<float>(states.keys),
          pointer<float>(states.values),
          pointer_or_null<float>(states.dkeys),
          pointer_or_null<float>(states.dvalues),
          states.keys.size(3),
          states.values.size(3)};
}

}  // namespace

SlotWeights slot_weights(const SlotAttentionContext& context, const SlotSequences& sequences,
                         const Tensor& logits, const Tensor& mass_in, const Tensor& mass_out) {
  const auto empty = [&] { return Tensor::empty(logits.shape(), DType::f32, logits.device()); };
  const SlotWeights out{empty(), empty(), empty()};
  // Spans split rows already.
  const Tensor segments = sequences.spans.defined() ? Tensor() : context.segments;
  dispatch(logits.dtype(), [&](auto zero) {
    using T = decltype(zero);
    weights_typed<T>(context, sequences,
                     {pointer<T>(logits), pointer_or_null<uint8_t>(context.key_mask),
                      pointer_or_null<int32_t>(segments), pointer_or_null<double>(mass_in),
                      pointer_or_null<double>(mass_out), pointer<float>(out.weights),
                      pointer<float>(out.decays), pointer<float>(out.factors)});
  });
  return out;
}

Tensor slot_read_factors(const SlotAttentionOptions& options, const SlotSequences& sequences,
                         const Tensor& mass, const Shape& shape) {
  const Tensor factors = Tensor::empty(shape, DType::f32, mass.device());
  const SequenceRanges ranges = ranges_of(sequences);
  const double* from = pointer<double>(mass);
  float* to = pointer<float>(factors);
  for_each("slot_read_factors", mass.elements(), [=] __device__(int64_t item) {
    const int64_t l = item % ranges.N, h = item / ranges.N % ranges.H;
    const int64_t n = item / ranges.N / ranges.H, row = ranges.row(n);
    const float factor = read_factor(options, from[item]);
    for (int64_t t = ranges.begin(n); t < ranges.end(n); ++t) {
      to[ranges.token(row, t, h) * ranges.N + l] = factor;
    }
  });
  return factors;
}

void slot_logit_gradients(const SlotAttentionContext& context, const SlotSequences& sequences,
                          const SlotWeights& weights, const Tensor& dweights, const Tensor& to_sums,
                          const Tensor& dsums, const Tensor& dlogits) {
  dispatch(dlogits.dtype(), [&](auto zero) {
    using T = decltype(zero);
    logit_gradients_typed<T>(
        context.options, sequences,
        {pointer_or_null<uint8_t>(context.key_mask), pointer<float>(weights.weights),
         pointer<float>(weights.decays), pointer<float>(dweights), pointer_or_null<float>(to_sums),
         pointer<float>(dsums), pointer<T>(dlogits)});
  });
}

Tensor slot_sums_gradient(const SlotAttentionOptions& options, const SlotStates& end,
                          const Tensor& dmass) {
  const Tensor dsums = Tensor::zeros({end.keys.size(0), end.keys.size(1), end.keys.size(2)},
                                     DType::f32, end.keys.device());
  if (options.normalizer == SlotNormalizer::none) return dsums;
  const bool log_space = options.control == SlotControl::exp;
  const StateArrays states = arrays_of(end);
  const double* from = pointer_or_null<double>(dmass);
  float* to = pointer<float>(dsums);
  for_each("slot_sums_gradient", dsums.elements(), [=] __device__(int64_t i) {
    const float given = from != nullptr ? static_cast<float>(from[i]) : 0.0f;
    to[i] = log_space ? given - states.products(i) : given;
  });
  return dsums;
}

void slot_mass_gradient(const SlotAttentionOptions& options, const SlotStates& start,
                        const Tensor& dsums, const Tensor& dmass) {
  const bool log_space = options.control == SlotControl::exp;
  const StateArrays states = arrays_of(start);
  const float* from = pointer<float>(dsums);
  double* to = pointer<double>(dmass);
  for_each("slot_mass_gradient", dmass.elements(), [=] __device__(int64_t i) {
    to[i] = log_space ? from[i] + states.products(i) : from[i];
  });
}

void slot_read_mass_gradient(const SlotAttentionOptions& options, const SlotSequences& sequences,
                             const Tensor& to_sums, const Tensor& dmass) {
  // Means in log space do not depend on the normalizer.
  if (options.control == SlotControl::exp) return dmass.set_zero();
  const SequenceRanges ranges = ranges_of(sequences);
  const float* from = pointer<float>(to_sums);
  double* to = pointer<double>(dmass);
  for_each("slot_read_mass_gradient", dmass.elements(), [=] __device__(int64_t item) {
    const int64_t l = item % ranges.N, h = item / ranges.N % ranges.H;
    const int64_t n = item / ranges.N / ranges.H, row = ranges.row(n);
    double total = 0;
    for (int64_t t = ranges.begin(n); t < ranges.end(n); ++t) {
      total += from[ranges.token(row, t, h) * ranges.N + l];
    }
    to[item] = total;
  });
}

}  // namespace linnet::cuda
