#include "attention/joint/cuda/joint_softmax.h"

#include "attention/joint/joint_softmax_rule.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {

using namespace joint_softmax_rule;

void joint_softmax(const JointParts& in, const Tensor& y) {
  const int64_t V = y.size(3);
  const float *a = pointer<float>(in.a), *b = pointer<float>(in.b);
  const float *sums_a = pointer<float>(in.sums_a), *sums_b = pointer<float>(in.sums_b);
  float* out = pointer<float>(y);
  for_each("joint_softmax", y.elements(), [=] __device__(int64_t i) {
    const float of_a = sums_a[i / V], of_b = sums_b[i / V];
    out[i] = share(of_a, of_b) * a[i] + share(of_b, of_a) * b[i];
  });
}

void joint_softmax_backward(const JointParts& in, const Tensor& dy, const JointParts& d) {
  const int64_t V = dy.size(3);
  const float *a = pointer<float>(in.a), *b = pointer<float>(in.b), *from = pointer<float>(dy);
  const float *sums_a = pointer<float>(in.sums_a), *sums_b = pointer<float>(in.sums_b);
  float *to_a = pointer<float>(d.a), *to_b = pointer<float>(d.b);
  float *to_sums_a = pointer<float>(d.sums_a), *to_sums_b = pointer<float>(d.sums_b);
  for_each("joint_softmax_dy", dy.elements(), [=] __device__(int64_t i) {
    const float of_a = sums_a[i / V], of_b = sums_b[i / V];
    to_a[i] = share(of_a, of_b) * from[i];
    to_b[i] = share(of_b, of_a) * from[i];
  });
  for_each("joint_softmax_sums", in.sums_a.elements(), [=] __device__(int64_t i) {
    const float of_a = sums_a[i], of_b = sums_b[i];
    const float moved =
        shift(a + i * V, b + i * V, from + i * V, V, share(of_a, of_b), share(of_b, of_a));
    to_sums_a[i] = moved;
    to_sums_b[i] = -moved;
  });
}

}  // namespace linnet::cuda
