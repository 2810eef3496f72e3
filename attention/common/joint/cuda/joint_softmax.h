// joint_softmax (attention/common/joint/joint_softmax.h) on a CUDA device, f32.
#pragma once

#include "core/tensor.h"

namespace linnet {

// Two parts of a softmax, y [B,T,H,V] and log-sum-exp [B,T,H] each, or their gradients.
struct JointParts {
  Tensor a, sums_a, b, sums_b;
};

namespace cuda {

void joint_softmax(const JointParts& in, const Tensor& y, const Tensor& sums);
// dsums may be undefined: zeros.
void joint_softmax_backward(const JointParts& in, const Tensor& dy, const Tensor& dsums,
                            const JointParts& d);

}  // namespace cuda
}  // namespace linnet
