#include "attention/leapformer/waiting.h"

#include "attention/common/token_slices.h"
#include "autograd/arithmetic.h"

namespace linnet {
namespace {

Variable zeros_like(const Variable& x, int64_t rows, int64_t tokens, int64_t width) {
  return Variable(Tensor::zeros({rows, tokens, width}, x.dtype(), x.value().device()));
}

// x [B,T,...] with other sizes instead of B and T.
Shape resized(const Variable& x, int64_t rows, int64_t tokens) {
  return x.shape().with(0, rows).with(1, tokens);
}

}  // namespace

WaitingQueries::WaitingQueries(const WaitPolicy& policy, int64_t first, int64_t count,
                               int64_t source)
    : step_(policy.read), count_(count) {
  // Query i is early while (wait + first + i) read < source.
  const int64_t reads = (source + step_ - 1) / step_, begun = policy.wait + first;
  early_ = std::clamp<int64_t>(reads - begun, 0, count);
  begin_ = early_ > 0 ? (begun - 1) * step_ : 0;
}

Variable WaitingQueries::spread(const Variable& x) const {
  if (!x.defined()) return x;
  const int64_t B = x.size(0), width = x.shape().elements() / std::max<int64_t>(B * count_, 1);
  // Every query after the tokens that arrive for it.
  const Variable queries = reshape(tokens_of(x, 0, early_), {B * early_, 1, width});
  const Variable steps = join_tokens({zeros_like(x, B * early_, step_ - 1, width), queries});
  const Variable laid =
      join_tokens({zeros_like(x, B, begin_, width), reshape(steps, {B, early_ * step_, width})});
  return reshape(laid, resized(x, B, tokens()));
}

Variable WaitingQueries::later(const Variable& x) const {
  return tokens_of(x, early_, count_);
}

Variable WaitingQueries::arrived(const Variable& x) const {
  return tokens_of(x, 0, tokens());
}

Variable WaitingQueries::read(const std::function<Variable()>& causal,
                              const std::function<Variable()>& whole) const {
  std::vector<Variable> parts;
  if (early_ > 0) {
    const Variable y = causal();
    const int64_t B = y.size(0), width = y.size(2) * y.size(3);
    const Variable steps = reshape(tokens_of(y, begin_, tokens()), {B * early_, step_, width});
    parts.push_back(reshape(tokens_of(steps, step_ - 1, step_), resized(y, B, early_)));
  }
  if (early_ < count_ || count_ == 0) parts.push_back(whole());
  return join_tokens(parts);
}

}  // namespace linnet
