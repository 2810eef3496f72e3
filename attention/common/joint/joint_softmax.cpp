#include "attention/common/joint/joint_softmax.h"

#include "attention/common/joint/cuda/joint_softmax.h"
#include "attention/common/joint/joint_softmax_rule.h"
#include "attention/primitives/common/binding.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

using namespace joint_softmax_rule;

constexpr int64_t kGrain = 512;

// Rows of parts, or of their gradients.
template <typename T>
struct Rows {
  explicit Rows(const JointParts& of)
      : a(of.a.data<T>()),
        b(of.b.data<T>()),
        sums_a(of.sums_a.data<T>()),
        sums_b(of.sums_b.data<T>()) {}
  T *a, *b, *sums_a, *sums_b;
};

template <typename T>
void forward(const JointParts& in, const Tensor& y, const Tensor& sums) {
  const int64_t V = y.size(3);
  const Rows<T> of(in);
  T *to = y.data<T>(), *to_sums = sums.data<T>();
  parallel_for(sums.elements(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T a = share(of.sums_a[i], of.sums_b[i]), b = share(of.sums_b[i], of.sums_a[i]);
      for (int64_t c = i * V; c < (i + 1) * V; ++c) {
        to[c] = weighted(a, of.a[c]) + weighted(b, of.b[c]);
      }
      to_sums[i] = sum_of(of.sums_a[i], of.sums_b[i]);
    }
  });
}

// dsums may be undefined: zeros.
template <typename T>
void backward(const JointParts& in, const Tensor& dy, const Tensor& dsums, const JointParts& d) {
  const int64_t V = dy.size(3);
  const Rows<T> of(in), to(d);
  const T *from = dy.data<T>(), *from_sums = binding::pointer<T>(dsums);
  parallel_for(in.sums_a.elements(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T a = share(of.sums_a[i], of.sums_b[i]), b = share(of.sums_b[i], of.sums_a[i]);
      const T moved = shift(of.a + i * V, of.b + i * V, from + i * V, V, a, b);
      const T given = from_sums == nullptr ? T{0} : from_sums[i];
      to.sums_a[i] = moved + weighted(a, given);
      to.sums_b[i] = weighted(b, given) - moved;
      for (int64_t c = i * V; c < (i + 1) * V; ++c) {
        to.a[c] = weighted(a, from[c]);
        to.b[c] = weighted(b, from[c]);
      }
    }
  });
}

}  // namespace

ListedAttentionResult joint_softmax(const ListedAttentionResult& a,
                                    const ListedAttentionResult& b) {
  const JointParts in{a.y.value(), a.log_sum_exp.value(), b.y.value(), b.log_sum_exp.value()};
  require(in.a.shape() == in.b.shape() && in.a.dtype() == in.b.dtype() &&
              in.sums_a.dtype() == in.a.dtype() && in.sums_b.dtype() == in.a.dtype(),
          "joint_softmax: parts ", in.a.shape(), " and ", in.b.shape(), " do not fit together");
  const Tensor y = binding::empty_like(in.a), sums = binding::empty_like(in.sums_a);
  if constexpr (kCuda) {
    if (on_cuda(y)) cuda::joint_softmax(in, y, sums);
  }
  if (!kCuda || !on_cuda(y)) {
    binding::dispatch(y.dtype(), [&](auto zero) { forward<decltype(zero)>(in, y, sums); });
  }
  // Fused: a part of no weight may hold NaN, which composed products would spread.
  const std::vector<Variable> results = record_many(
      "joint_softmax", {y, sums}, {a.y, a.log_sum_exp, b.y, b.log_sum_exp},
      [in](Gradients& gradients) {
        const Tensor& dy = gradients.output();
        const Tensor dsums = binding::output_or_none(gradients, 1);
        const JointParts d{binding::empty_like(in.a), binding::empty_like(in.sums_a),
                           binding::empty_like(in.b), binding::empty_like(in.sums_b)};
        if constexpr (kCuda) {
          if (on_cuda(dy)) cuda::joint_softmax_backward(in, dy, dsums, d);
        }
        if (!kCuda || !on_cuda(dy)) {
          binding::dispatch(dy.dtype(),
                            [&](auto zero) { backward<decltype(zero)>(in, dy, dsums, d); });
        }
        binding::add_all(gradients, {d.a, d.sums_a, d.b, d.sums_b});
      });
  return {results[0], results[1]};
}

}  // namespace linnet
