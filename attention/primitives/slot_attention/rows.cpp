// A token's read of the slots of a head: softmax, dropout, and their gradient.
#include <algorithm>
#include <limits>

#include "attention/primitives/common/row_dropout.h"
#include "attention/primitives/common/simd.h"
#include "attention/primitives/slot_attention/tile.h"

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
void Kernel<T>::products_to_logits(int64_t n, TileRows<const T> factors, T* products) const {
  const T scale = static_cast<T>(options.scale);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t l = 0; l < np; l += kLanes<T>) {
      T* at = products + i * np + l;
      store(at, scale * load(factors.data + i * factors.stride + l) * load(at));
    }
  }
}

// For `rows` tokens, at most a vector of them: exp(logit - largest logit) over the slots in use, 0
// for the others, whose logits become 0. Lane i of the result is the factor that makes row i sum to
// 1: 0 where no slot is in use.
template <typename T>
Vector<T> Kernel<T>::exponentials(int64_t rows, TileRows<const T> factors, T* logits,
                                  T* out) const {
  const Vector<T> left_out = simd::broadcast(-kInfinity<T>);
  Vector<T> reduced[kLanes<T>] = {};
  for (int64_t i = 0; i < rows; ++i) {
    Vector<T> largest = left_out;
    for (int64_t l = 0; l < np; l += kLanes<T>) {
      Vector<T> logit = load(logits + i * np + l);
      if (options.mask_empty) {
        logit = load(factors.data + i * factors.stride + l) == 0 ? left_out : logit;
      }
      logit = simd::first_lanes<T>(logit, N - l, left_out);
      largest = simd::maximum<T>(largest, logit);
      store(out + i * np + l, logit);
    }
    reduced[i] = largest;
  }
  const Vector<T> largest = simd::row_maxima<T>(reduced);
  T shifts[kLanes<T>];
  store(shifts, largest == left_out ? Vector<T>{} : largest);
  for (int64_t i = 0; i < kLanes<T>; ++i) reduced[i] = Vector<T>{};
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t l = 0; l < np; l += kLanes<T>) {
      T* at = out + i * np + l;
      const Vector<T> logit = load(at), weight = simd::exp<T>(logit - shifts[i]);
      reduced[i] += weight;
      store(at, weight);
      store(logits + i * np + l, logit == left_out ? Vector<T>{} : logit);
    }
  }
  const Vector<T> totals = simd::row_sums<T>(reduced);
  return totals == 0 ? Vector<T>{} : T(1) / totals;
}

template <typename T>
void Kernel<T>::read_rows(int64_t n, TileRows<const T> factors, const T* kept, T* logits,
                          T* reads) const {
  for (int64_t first = 0; first < n; first += kLanes<T>) {
    const int64_t rows = std::min(kLanes<T>, n - first);
    const TileRows<const T> group{factors.data + first * factors.stride, factors.stride};
    T inverse[kLanes<T>];
    store(inverse, exponentials(rows, group, logits + first * np, reads + first * np));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t l = 0; l < np; l += kLanes<T>) {
        T* at = reads + (first + i) * np + l;
        Vector<T> read = load(at) * inverse[i] * load(group.data + i * group.stride + l);
        if (kept != nullptr) read *= load(kept + (first + i) * np + l);
        store(at, read);
      }
    }
  }
}

template <typename T>
void Kernel<T>::read_gradient_rows(int64_t n, TileRows<const T> factors, const T* kept, T* logits,
                                   T* dreads, T* to_keys, T* to_values, T* to_sums) const {
  const T scale = static_cast<T>(options.scale);
  const bool sums_matter = options.normalizer == SlotNormalizer::read_time;
  const T clamped = log_space ? kInfinity<T> : T(1) / static_cast<T>(options.floor);
  for (int64_t first = 0; first < n; first += kLanes<T>) {
    const int64_t rows = std::min(kLanes<T>, n - first), offset = first * np;
    const TileRows<const T> group{factors.data + first * factors.stride, factors.stride};
    T inverses[kLanes<T>], means[kLanes<T>];
    const Vector<T> inverse = exponentials(rows, group, logits + offset, to_values + offset);
    store(inverses, inverse);
    Vector<T> along[kLanes<T>] = {};
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t l = 0; l < np; l += kLanes<T>) {
        const int64_t at = offset + i * np + l;
        Vector<T> gradient = load(dreads + at) * load(group.data + i * group.stride + l);
        if (kept != nullptr) gradient *= load(kept + at);
        store(dreads + at, gradient);
        along[i] += load(to_values + at) * gradient;
      }
    }
    store(means, simd::row_sums<T>(along) * inverse);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t l = 0; l < np; l += kLanes<T>) {
        const int64_t at = offset + i * np + l;
        const Vector<T> factor = load(group.data + i * group.stride + l);
        const Vector<T> probability = load(to_values + at) * inverses[i];
        const Vector<T> gradient = load(dreads + at), dlogit = probability * (gradient - means[i]);
        const Vector<T> to_sum = -factor * (probability * gradient + dlogit * load(logits + at));
        store(to_sums + at, sums_matter ? (factor >= clamped ? Vector<T>{} : to_sum) : Vector<T>{});
        store(to_keys + at, scale * factor * dlogit);
        const Vector<T> to_value = factor * probability;
        store(to_values + at, kept != nullptr ? to_value * load(kept + at) : to_value);
      }
    }
  }
}

template <typename T>
const T* Kernel<T>::kept_rows(int64_t b, int64_t t, int64_t n, int64_t h, T* out) const {
  if (!(options.dropout > 0)) return nullptr;
  const RowDropout dropout(options.dropout, options.dropout_key, H * N);
  for (int64_t i = 0; i < n; ++i) {
    T* row = out + i * np;
    dropout.fill(inputs.examples ? inputs.examples[b] : b, inputs.time_offset + t + i, h * N, N,
                 row);
    std::fill(row + N, row + np, T(0));
  }
  return out;
}

#define LINNET_INSTANTIATE(T)                                                                   \
  template void Kernel<T>::products_to_logits(int64_t, TileRows<const T>, T*) const;            \
  template void Kernel<T>::read_rows(int64_t, TileRows<const T>, const T*, T*, T*) const;       \
  template void Kernel<T>::read_gradient_rows(int64_t, TileRows<const T>, const T*, T*, T*, T*, \
                                              T*, T*) const;                                    \
  template const T* Kernel<T>::kept_rows(int64_t, int64_t, int64_t, int64_t, T*) const;
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet::slot_attention_detail
