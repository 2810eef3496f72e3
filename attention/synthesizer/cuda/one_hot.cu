#include "attention/synthesizer/cuda/one_hot.h"

#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {

void one_hot_positions(const Tensor& positions, const Tensor& rows) {
  const int32_t* from = pointer<int32_t>(positions);
  const StoredResults to = stored_results(rows);
  const int64_t count = rows.size(3), heads = rows.size(2);
  for_each("one_hot_positions", rows.elements(), [=] __device__(int64_t i) {
    to.put(i, from[i / count / heads] == i % count ? 1.0f : 0.0f);
  });
}

}  // namespace linnet::cuda
