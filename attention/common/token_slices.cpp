#include "attention/common/token_slices.h"

#include "attention/primitives/block_attention/carry.h"

namespace linnet {
namespace {

Tensor empty_slice(const Tensor& like, int64_t tokens) {
  std::vector<int64_t> sizes = like.shape().sizes();
  sizes[1] = tokens;
  return Tensor::empty(Shape(sizes), like.dtype(), like.device());
}

}  // namespace

Tensor tokens_of(const Tensor& x, int64_t begin, int64_t end) {
  if (!x.defined()) return {};
  require(x.shape().rank() >= 2 && 0 <= begin && begin <= end && end <= x.size(1),
          "tokens_of: expected tokens within [B,T,...], got ", begin, " to ", end, " of ",
          x.shape());
  const Tensor slice = empty_slice(x, end - begin);
  copy_tokens(x, begin, slice, 0, end - begin);
  return slice;
}

Variable tokens_of(const Variable& x, int64_t begin, int64_t end) {
  if (!x.defined() || (begin == 0 && end == x.size(1))) return x;
  return record("tokens_of", tokens_of(x.value(), begin, end), {x},
                [shape = x.shape(), begin, end](Gradients& gradients) {
                  const Tensor& dy = gradients.output();
                  const Tensor dx = Tensor::zeros(shape, dy.dtype(), dy.device());
                  copy_tokens(dy, 0, dx, begin, end - begin);
                  gradients.add(0, dx);
                });
}

Tensor join_tokens(const std::vector<Tensor>& slices) {
  require(!slices.empty(), "join_tokens: expected at least one slice");
  int64_t tokens = 0;
  for (const Tensor& slice : slices) tokens += slice.size(1);
  const Tensor joined = empty_slice(slices.front(), tokens);
  int64_t at = 0;
  for (const Tensor& slice : slices) {
    std::vector<int64_t> expected = joined.shape().sizes();
    expected[1] = slice.size(1);
    require(slice.shape() == Shape(expected) && slice.dtype() == joined.dtype(),
            "join_tokens: ", slice.shape(), " ", name_of(slice.dtype()), " does not continue ",
            slices.front().shape(), " ", name_of(joined.dtype()));
    copy_tokens(slice, 0, joined, at, slice.size(1));
    at += slice.size(1);
  }
  return joined;
}

Variable join_tokens(const std::vector<Variable>& slices) {
  if (slices.size() == 1) return slices.front();
  std::vector<Tensor> values;
  std::vector<int64_t> begins{0};
  for (const Variable& slice : slices) {
    values.push_back(slice.value());
    begins.push_back(begins.back() + slice.size(1));
  }
  return record("join_tokens", join_tokens(values), slices, [begins](Gradients& gradients) {
    for (size_t i = 0; i + 1 < begins.size(); ++i) {
      if (gradients.wanted(i)) {
        gradients.add(i, tokens_of(gradients.output(), begins[i], begins[i + 1]));
      }
    }
  });
}

}  // namespace linnet
