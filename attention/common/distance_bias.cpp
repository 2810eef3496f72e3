#include "attention/common/distance_bias.h"

#include "autograd/arithmetic.h"
#include "autograd/embedding.h"

namespace linnet {

DistanceBias::DistanceBias(const MixerOptions& options, const ParameterScope& tied)
    : heads_(options.heads),
      causal_(options.form == Form::causal),
      bias_(tied.shared("distance_bias", {options.heads * kDistanceBuckets, 1},
                        init_normal(1 / std::sqrt(static_cast<double>(options.width))))) {}

Variable DistanceBias::table(int64_t first, int64_t count, Device device) const {
  const Tensor ids = distance_ids(first, count, causal_, device, heads_);
  return reshape(embedding(ids, bias_), {heads_, count});
}

double DistanceBias::bytes(DType dtype) const {
  return static_cast<double>(heads_ * kDistanceBuckets) * static_cast<double>(size_of(dtype));
}

}  // namespace linnet
