#include "attention/clustered/cluster_blend.h"

#include "autograd/arithmetic.h"
#include "autograd/functions.h"
#include "autograd/indexing.h"
#include "autograd/layout.h"
#include "autograd/reductions.h"

namespace linnet {
namespace {

Variable constant(double value, const Variable& like) {
  return Variable(Tensor::full(like.shape(), value, like.dtype(), like.value().device()));
}

// max(x, least) of x [..,1].
Variable at_least(const Variable& x, double least) {
  return max(concatenate({x, constant(least, x)}, -1), -1);
}

// beta [B,C H,1]. Finite logarithms keep NaN out where a cluster or its top has no keys; the lower
// floor of the bottom's gives it no share beside a top without keys either.
Variable shares_of(const Variable& log_top, const Variable& log_bottom) {
  const Shape column{log_top.size(0), log_top.size(1) * log_top.size(2), 1};
  return sigmoid(subtract(at_least(reshape(log_bottom, column), -2e30),
                          at_least(reshape(log_top, column), -1e30)));
}

}  // namespace

Variable cluster_means(const Variable& x, const Tensor& places, int64_t C) {
  const int64_t B = x.size(0), T = x.size(1), H = x.size(2), K = x.size(3);
  const Variable ones(Tensor::full({B, T * H, 1}, 1, x.dtype(), x.value().device()));
  const Variable counts = at_least(scatter_add(ones, places, C * H), 1);
  const Variable sums = scatter_add(reshape(x, {B, T * H, K}), places, C * H);
  return reshape(divide(sums, counts), {B, C, H, K});
}

Variable cluster_blend(const ClusterBlendInputs& inputs, const Tensor& places, bool detached) {
  const int64_t B = inputs.bottom.size(0), H = inputs.bottom.size(2), V = inputs.bottom.size(3);
  const Shape tokens{B, places.size(1) / H, H, V}, rows{B, places.size(1), V};
  const Variable bottom = reshape(inputs.bottom, {B, inputs.bottom.size(1) * H, V});
  if (!inputs.top.defined()) return reshape(gather(bottom, places), tokens);
  const Variable share = shares_of(inputs.log_top, inputs.log_bottom);
  const Variable rest = subtract(constant(1, share), detached ? share.detach() : share);
  return reshape(add(multiply(reshape(inputs.top, rows), gather(rest, places)),
                     gather(multiply(bottom, share), places)),
                 tokens);
}

}  // namespace linnet
