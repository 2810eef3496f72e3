// What a token reads from the slots of a head: soft-max, dropout, and their gradient.
#include <algorithm>
#include <limits>

#include "attention/primitives/row_dropout.h"
#include "attention/primitives/simd.h"
#include "attention/primitives/slot_attention_tile.h"

namespace linnet::slot_attention_detail {

template <typename T>
void Kernel<T>::soft_max_row(const T* products, const T* factors, T* logits,
                             T* probabilities) const {
  const T scale = static_cast<T>(options.scale);
  int64_t left_out = 0;
  for (int64_t l = 0; l < N; ++l) {
    const bool out = options.mask_empty && factors[l] == 0;
    logits[l] = out ? -std::numeric_limits<T>::infinity() : scale * factors[l] * products[l];
    left_out += static_cast<int64_t>(out);
  }
  std::fill(probabilities + N, probabilities + np, T(0));
  if (left_out == N) {
    std::fill_n(probabilities, N, T(0));
  } else {
    const T largest = max_row(logits, N);
    const T inverse = T(1) / exp_row(logits, N, largest, probabilities);
    for (int64_t l = 0; l < N; ++l) probabilities[l] *= inverse;
  }
  for (int64_t l = 0; l < N; ++l)
    logits[l] = logits[l] == -std::numeric_limits<T>::infinity() ? T(0) : logits[l];
  std::fill(logits + N, logits + np, T(0));
}

template <typename T>
void Kernel<T>::read_gradient_row(const T* factors, const T* kept, T* products, T* dreads,
                                  T* to_keys, T* to_values, T* to_sums) const {
  const T scale = static_cast<T>(options.scale);
  const bool sums_matter = options.normalizer == SlotNormalizer::read_time;
  soft_max_row(products, factors, products, to_values);
  for (int64_t l = 0; l < np; ++l) dreads[l] *= factors[l];
  for (int64_t l = 0; kept != nullptr && l < np; ++l) dreads[l] *= kept[l];
  const T mean = dot_row(to_values, dreads, np);
  for (int64_t l = 0; l < np; ++l) {
    const T probability = to_values[l], dlogit = probability * (dreads[l] - mean);
    const bool flat = !sums_matter || is_clamped(factors[l]);
    to_sums[l] = flat ? T(0) : -factors[l] * (dlogit * products[l] + probability * dreads[l]);
    to_keys[l] = scale * factors[l] * dlogit;
    to_values[l] = factors[l] * probability;
  }
  for (int64_t l = 0; kept != nullptr && l < np; ++l) to_values[l] *= kept[l];
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
  template void Kernel<T>::soft_max_row(const T*, const T*, T*, T*) const;                  \
  template void Kernel<T>::read_gradient_row(const T*, const T*, T*, T*, T*, T*, T*) const; \
  template const T* Kernel<T>::kept_row(int64_t, int64_t, int64_t, T*) const;
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet::slot_attention_detail
