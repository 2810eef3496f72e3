// Dropout: the factors of autograd/dropout.h, drawn where they are used.
#include "autograd/cuda/dropout.h"

#include "core/cuda/for_each.h"
#include "core/cuda/random.h"

namespace linnet::cuda {
namespace {

// One thread for each counter: four channels of a row.
template <typename T>
void dropout_typed(const Tensor& x, const Tensor& base, const DropoutSpec& spec, const Tensor& y) {
  const T* from = pointer<T>(x);
  const T* plus = pointer_or_null<T>(base);
  T* to = pointer<T>(y);
  const int64_t* examples = pointer<int64_t>(spec.place.examples);
  const int64_t time = x.size(1), channels = x.size(2), groups = (channels + 3) / 4;
  const int64_t offset = spec.place.time_offset;
  const float keep = dropout_scale(spec.probability);
  const uint32_t limit = dropout_limit(spec.probability);
  const RandomKey key = spec.key;
  for_each("dropout", x.size(0) * time * groups, [=] __device__(int64_t i) {
    const int64_t row = i / groups, group = i % groups;
    const auto words = key_of_step(key).words(random_element(
        static_cast<uint64_t>(examples[row / time]), static_cast<uint64_t>(offset + row % time),
        static_cast<uint64_t>(group), static_cast<uint64_t>(groups)));
    for (int64_t word = 0; word < 4 && 4 * group + word < channels; ++word) {
      const int64_t at = row * channels + 4 * group + word;
      const float factor = words[static_cast<size_t>(word)] < limit ? 0.0f : keep;
      store(to + at, (plus == nullptr ? 0.0f : load(plus + at)) + load(from + at) * factor);
    }
  });
}

}  // namespace

void dropout(const Tensor& x, const Tensor& base, const DropoutSpec& spec, const Tensor& y) {
  dispatch(x.dtype(), [&](auto zero) { dropout_typed<decltype(zero)>(x, base, spec, y); });
}

}  // namespace linnet::cuda
