#include "attention/common/token_slices.h"

#include "autograd/layout.h"

namespace linnet {

Tensor tokens_of(const Tensor& x, int64_t begin, int64_t end) {
  return x.defined() ? slice(x, 1, begin, end) : x;
}

Variable tokens_of(const Variable& x, int64_t begin, int64_t end) {
  return x.defined() ? slice(x, 1, begin, end) : x;
}

Tensor join_tokens(const std::vector<Tensor>& slices) {
  return concatenate(slices, 1);
}

Variable join_tokens(const std::vector<Variable>& slices) {
  return concatenate(slices, 1);
}

}  // namespace linnet
