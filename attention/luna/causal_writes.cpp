#include "attention/luna/causal_writes.h"

#include <numbers>

#include "autograd/arithmetic.h"
#include "autograd/functions.h"
#include "autograd/layout.h"
#include "autograd/products.h"

namespace linnet {

Variable causal_writes(const Variable& x, const Variable& p, const Tensor& mask, double factor) {
  const auto writes = [mask, factor](const std::vector<Variable>& in) {
    const int64_t B = in[0].size(0), T = in[0].size(1), H = in[0].size(2), K = in[0].size(3);
    const Tensor valid = mask.defined() ? mask.reshape({B, T, 1, 1}) : mask;
    // Masked tokens may hold NaN, which would reach the gradient of p.
    Variable tokens = mask.defined() ? masked_fill(in[0], valid, 0) : in[0];
    tokens = transpose(reshape(tokens, {B * T, H, K}), 0, 1);
    const Variable memory = scale(transpose(in[1], 0, 1), factor * std::numbers::ln2);
    Variable y = matmul(tokens, memory, Transpose::no, Transpose::yes);  // [H,BT,N]
    y = scale(softplus(y), 1 / std::numbers::ln2);
    y = reshape(transpose(y, 0, 1), {B, T, H, in[1].size(0)});
    return std::vector<Variable>{mask.defined() ? masked_fill(y, valid, 0) : y};
  };
  // Recomputed in backward: they are cheap beside the tensors [H,BT,.] that it would keep.
  return recompute(writes, {x, p}, {}).front();
}

}  // namespace linnet
