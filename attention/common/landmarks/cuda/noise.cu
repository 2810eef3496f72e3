#include "attention/common/landmarks/cuda/noise.h"

#include "core/cuda/for_each.h"
#include "core/cuda/random.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {

Tensor landmark_noise(const RandomKey& key, const Tensor& examples, const Tensor& x,
                      int64_t first) {
  const Tensor made = Tensor::empty(x.shape(), x.dtype(), x.device());
  const auto* example = pointer<const int64_t>(examples);
  const StoredResults to = stored_results(made);
  const int64_t width = made.size(3), each = made.size(1) * made.size(2);
  for_each("landmark_noise", made.elements(), [=] __device__(int64_t i) {
    const int64_t row = i / width / each;
    const uint64_t element = random_element(
        static_cast<uint64_t>(example[row]), static_cast<uint64_t>(first + i / width % each),
        static_cast<uint64_t>(i % width), static_cast<uint64_t>(width));
    to.put(i, static_cast<float>(normal(key_of_step(key), element)));
  });
  return made;
}

}  // namespace linnet::cuda
