#include "attention/common/joint/cuda/block_bias.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {

void number_distances(const PlaceDistances& distances, const Tensor& index) {
  int32_t* to = pointer<int32_t>(index);
  for_each("number_distances", index.elements(),
           [=] __device__(int64_t i) { to[i] = distances.number(i); });
}

}  // namespace linnet::cuda
