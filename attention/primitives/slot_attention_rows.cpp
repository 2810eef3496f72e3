// What a token reads from the slots of a head: soft-max, dropout, and their gradient.
#include <algorithm>
#include <limits>

#include "attention/primitives/row_dropout.h"
#include "attention/primitives/simd.h"
#include "attention/primitives/slot_attention_tile.h"

namespace linnet::slot_attention_detail {
namespace {

using simd::kLanes;
using simd::load;
using simd::store;
using simd::Vector;

template <typename T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();

}  // namespace

template <typename T>
void Kernel<T>::products_to_logits(const T* factors, T* products) const {
  const T scale = static_cast<T>(options.scale);
  for (int64_t l = 0; l < np; l += kLanes<T>) {
    store(products + l, scale * load(factors + l) * load(products + l));
  }
}

template <typename T>
void Kernel<T>::soft_max_row(const T* factors, T* logits, T* probabilities) const {
  const Vector<T> left_out = simd::broadcast(-kInfinity<T>);
  Vector<T> largest = left_out;
  for (int64_t l = 0; l < np; l += kLanes<T>) {
    Vector<T> logit = load(logits + l);
    if (options.mask_empty) logit = load(factors + l) == 0 ? left_out : logit;
    logit = simd::first_lanes<T>(logit, N - l, left_out);
    largest = simd::maximum<T>(largest, logit);
    store(logits + l, logit);
  }
  const T shift = simd::max<T>(largest);
  // Logits of NaN are no maximum either, but they are not nothing.
  if (shift == -kInfinity<T> &&
      std::all_of(logits, logits + N, [](T logit) { return logit == -kInfinity<T>; })) {
    std::fill_n(logits, np, T(0));
    std::fill_n(probabilities, np, T(0));
    return;
  }
  Vector<T> total = {};
  for (int64_t l = 0; l < np; l += kLanes<T>) {
    const Vector<T> logit = load(logits + l), weight = simd::exp<T>(logit - shift);
    total += weight;
    store(probabilities + l, weight);
    store(logits + l, logit == -kInfinity<T> ? Vector<T>{} : logit);
  }
  const T inverse = T(1) / simd::sum<T>(total);
  for (int64_t l = 0; l < np; l += kLanes<T>) {
    store(probabilities + l, load(probabilities + l) * inverse);
  }
}

template <typename T>
void Kernel<T>::read_gradient_row(const T* factors, const T* kept, T* logits, T* dreads, T* to_keys,
                                  T* to_values, T* to_sums) const {
  const T scale = static_cast<T>(options.scale);
  const bool sums_matter = options.normalizer == SlotNormalizer::read_time;
  const T clamped = log_space ? kInfinity<T> : T(1) / static_cast<T>(options.floor);
  soft_max_row(factors, logits, to_values);
  Vector<T> along = {};
  for (int64_t l = 0; l < np; l += kLanes<T>) {
    Vector<T> gradient = load(dreads + l) * load(factors + l);
    if (kept != nullptr) gradient *= load(kept + l);
    store(dreads + l, gradient);
    along += load(to_values + l) * gradient;
  }
  const T mean = simd::sum<T>(along);
  for (int64_t l = 0; l < np; l += kLanes<T>) {
    const Vector<T> factor = load(factors + l), probability = load(to_values + l);
    const Vector<T> gradient = load(dreads + l), dlogit = probability * (gradient - mean);
    const Vector<T> to_sum = -factor * (probability * gradient + dlogit * load(logits + l));
    store(to_sums + l, sums_matter ? (factor >= clamped ? Vector<T>{} : to_sum) : Vector<T>{});
    store(to_keys + l, scale * factor * dlogit);
    const Vector<T> to_value = factor * probability;
    store(to_values + l, kept != nullptr ? to_value * load(kept + l) : to_value);
  }
}

template <typename T>
const T* Kernel<T>::kept_row(int64_t b, int64_t t, int64_t h, T* out) const {
  if (!(options.dropout > 0)) return nullptr;
  RowDropout(options.dropout, options.dropout_key, H * N)
      .fill(inputs.examples ? inputs.examples[b] : b, inputs.time_offset + t, h * N, N, out);
  std::fill(out + N, out + np, T(0));
  return out;
}

#define LINNET_INSTANTIATE(T)                                                               \
  template void Kernel<T>::products_to_logits(const T*, T*) const;                          \
  template void Kernel<T>::soft_max_row(const T*, T*, T*) const;                            \
  template void Kernel<T>::read_gradient_row(const T*, const T*, T*, T*, T*, T*, T*) const; \
  template const T* Kernel<T>::kept_row(int64_t, int64_t, int64_t, T*) const;
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet::slot_attention_detail
