#include "attention/common/gaussian_kernel.h"

#include "attention/common/cuda/gaussian_kernel.h"
#include "attention/common/mixer_support.h"
#include "attention/common/square_rule.h"
#include "attention/primitives/common/binding.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

constexpr int64_t kGrain = 4096;

template <typename T>
SquareRule<T> rule_of(const Tensor& x, const Tensor& mask, bool is_key) {
  return {x.size(2), x.size(3), is_key, x.data<T>(),
          mask.defined() ? mask.data<uint8_t>() : nullptr};
}

// y = with_square(x), or dx from dy.
void square(const Tensor& x, const Tensor& mask, bool is_key, const Tensor& dy, const Tensor& to) {
  if constexpr (kCuda) {
    if (on_cuda(x)) return cuda::with_square(x, mask, is_key, dy, to);
  }
  binding::dispatch(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const SquareRule<T> rule = rule_of<T>(x, mask, is_key);
    const T* d = dy.defined() ? dy.data<T>() : nullptr;
    T* out = to.data<T>();
    parallel_for(to.elements(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = d ? rule.gradient(d, i) : rule.value(i);
    });
  });
}

}  // namespace

Variable with_square(const Variable& x, const Tensor& mask, bool is_key) {
  const Tensor& from = x.value();
  binding::check_sequence(from, "with_square");
  const Tensor y = Tensor::empty({from.size(0), from.size(1), from.size(2), from.size(3) + 2},
                                 from.dtype(), from.device());
  square(from, mask, is_key, {}, y);
  return record("with_square", y, {x}, [from, mask, is_key](Gradients& gradients) {
    const Tensor dx = binding::empty_like(from);
    square(from, mask, is_key, gradients.output(), dx);
    gradients.add(0, dx);
  });
}

Variable gaussian_attention(const Variable& q, const Variable& k, const Variable& v,
                            BlockAttentionContext context) {
  const DType dtype = sum_dtype(q.dtype());
  context.options.weights = BlockWeights::exponential;
  context.options.scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  const Variable queries = with_square(as_dtype(q, dtype), context.query_mask, false);
  const Variable keys = with_square(as_dtype(k, dtype), context.key_mask, true);
  return block_attention({queries, keys, as_dtype(v, dtype), {}, {}, {}}, context);
}

}  // namespace linnet
