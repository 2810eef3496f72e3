#include "attention/common/joint/cuda/joint_softmax.h"

#include "attention/common/joint/joint_softmax_rule.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {

using namespace joint_softmax_rule;

void joint_softmax(const JointParts& in, const Tensor& y, const Tensor& sums) {
  const int64_t V = y.size(3);
  const float *a = pointer<float>(in.a), *b = pointer<float>(in.b);
  const float *sums_a = pointer<float>(in.sums_a), *sums_b = pointer<float>(in.sums_b);
  float *out = pointer<float>(y), *out_sums = pointer<float>(sums);
  for_each("joint_softmax", y.elements(), [=] __device__(int64_t i) {
    const float of_a = sums_a[i / V], of_b = sums_b[i / V];
    out[i] = weighted(share(of_a, of_b), a[i]) + weighted(share(of_b, of_a), b[i]);
    if (i % V == 0) out_sums[i / V] = sum_of(of_a, of_b);
  });
}

void joint_softmax_backward(const JointParts& in, const Tensor& dy, const Tensor& dsums,
                            const JointParts& d) {
  const int64_t V = dy.size(3);
  const float *a = pointer<float>(in.a), *b = pointer<float>(in.b), *from = pointer<float>(dy);
  const float *sums_a = pointer<float>(in.sums_a), *sums_b = pointer<float>(in.sums_b);
  const float* from_sums = pointer_or_null<float>(dsums);
  float *to_a = pointer<float>(d.a), *to_b = pointer<float>(d.b);
  float *to_sums_a = pointer<float>(d.sums_a), *to_sums_b = pointer<float>(d.sums_b);
  for_each("joint_softmax_dy", dy.elements(), [=] __device__(int64_t i) {
    const float of_a = sums_a[i / V], of_b = sums_b[i / V];
    to_a[i] = weighted(share(of_a, of_b), from[i]);
    to_b[i] = weighted(share(of_b, of_a), from[i]);
  });
  for_each("joint_softmax_sums", in.sums_a.elements(), [=] __device__(int64_t i) {
    const float share_a = share(sums_a[i], sums_b[i]), share_b = share(sums_b[i], sums_a[i]);
    const float moved = shift(a + i * V, b + i * V, from + i * V, V, share_a, share_b);
    const float given = from_sums == nullptr ? 0.0f : from_sums[i];
    to_sums_a[i] = moved + weighted(share_a, given);
    to_sums_b[i] = weighted(share_b, given) - moved;
  });
}

}  // namespace linnet::cuda
