#include "attention/common/joint/cuda/overlapping_chunks.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {

void overlapping_chunk_rows(const overlapping_chunks_rule::Rows& rule, const Tensor& x,
                            const Tensor& y) {
  const float* from = pointer<float>(x);
  float* to = pointer<float>(y);
  for_each("overlapping_chunk_rows", y.elements(),
           [=] __device__(int64_t i) { to[i] = rule.element(from, i); });
}

void overlapping_chunk_rows_backward(const overlapping_chunks_rule::Rows& rule, const Tensor& dy,
                                     const Tensor& dx) {
  const float* from = pointer<float>(dy);
  float* to = pointer<float>(dx);
  for_each("overlapping_chunk_rows_backward", dx.elements(),
           [=] __device__(int64_t i) { to[i] = rule.gradient(from, i); });
}

}  // namespace linnet::cuda
