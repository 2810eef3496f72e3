#include "attention/common/gaussian_kernel.h"

#include "attention/common/mixer_support.h"
#include "autograd/arithmetic.h"
#include "autograd/layout.h"

namespace linnet {

Variable with_square(const Variable& x, const Tensor& mask, bool is_key) {
  const Variable kept = zeros_for_masked(x, mask);
  const Variable square = scale(dot(kept, kept), -0.5);
  const Variable one(Tensor::full(square.shape(), 1, x.dtype(), x.value().device()));
  return concatenate({kept, is_key ? one : square, is_key ? square : one}, 3);
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
