#include "attention/joint/joint_softmax.h"

#include "attention/joint/cuda/joint_softmax.h"
#include "attention/joint/joint_softmax_rule.h"
#include "attention/primitives/binding.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

using namespace joint_softmax_rule;

constexpr int64_t kGrain = 512;

template <typename T>
void forward(const JointParts& in, const Tensor& y) {
  const int64_t V = y.size(3);
  parallel_for(y.elements() / std::max<int64_t>(V, 1), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T of_a = in.sums_a.data<T>()[i], of_b = in.sums_b.data<T>()[i];
      const T a = share(of_a, of_b), b = share(of_b, of_a);
      for (int64_t c = i * V; c < (i + 1) * V; ++c) {
        y.data<T>()[c] = a * in.a.data<T>()[c] + b * in.b.data<T>()[c];
      }
    }
  });
}

template <typename T>
void backward(const JointParts& in, const Tensor& dy, const JointParts& d) {
  const int64_t V = dy.size(3);
  parallel_for(in.sums_a.elements(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T of_a = in.sums_a.data<T>()[i], of_b = in.sums_b.data<T>()[i];
      const T a = share(of_a, of_b), b = share(of_b, of_a);
      const T moved =
          shift(in.a.data<T>() + i * V, in.b.data<T>() + i * V, dy.data<T>() + i * V, V, a, b);
      d.sums_a.data<T>()[i] = moved;
      d.sums_b.data<T>()[i] = -moved;
      for (int64_t c = i * V; c < (i + 1) * V; ++c) {
        d.a.data<T>()[c] = a * dy.data<T>()[c];
        d.b.data<T>()[c] = b * dy.data<T>()[c];
      }
    }
  });
}

}  // namespace

Variable joint_softmax(const ListedAttentionResult& a, const ListedAttentionResult& b) {
  const JointParts in{a.y.value(), a.log_sum_exp.value(), b.y.value(), b.log_sum_exp.value()};
  require(in.a.shape() == in.b.shape() && in.a.dtype() == in.b.dtype() &&
              in.sums_a.dtype() == in.a.dtype() && in.sums_b.dtype() == in.a.dtype(),
          "joint_softmax: parts ", in.a.shape(), " and ", in.b.shape(), " do not fit together");
  const Tensor y = binding::empty_like(in.a);
  if constexpr (kCuda) {
    if (on_cuda(y)) cuda::joint_softmax(in, y);
  }
  if (!kCuda || !on_cuda(y)) {
    binding::dispatch(y.dtype(), [&](auto zero) { forward<decltype(zero)>(in, y); });
  }
  return record(
      "joint_softmax", y, {a.y, a.log_sum_exp, b.y, b.log_sum_exp}, [in](Gradients& gradients) {
        const Tensor& dy = gradients.output();
        const JointParts d{binding::empty_like(in.a), binding::empty_like(in.sums_a),
                           binding::empty_like(in.b), binding::empty_like(in.sums_b)};
        if constexpr (kCuda) {
          if (on_cuda(dy)) cuda::joint_softmax_backward(in, dy, d);
        }
        if (!kCuda || !on_cuda(dy)) {
          binding::dispatch(dy.dtype(), [&](auto zero) { backward<decltype(zero)>(in, dy, d); });
        }
        binding::add_all(gradients, {d.a, d.sums_a, d.b, d.sums_b});
      });
}

}  // namespace linnet
