#include "attention/common/token_pieces.h"

#include <cstring>

#include "attention/primitives/block_attention/cuda/carry.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

Tensor empty_piece(const Tensor& like, int64_t tokens) {
  std::vector<int64_t> sizes = like.shape().sizes();
  sizes[1] = tokens;
  return Tensor::empty(Shape(sizes), like.dtype(), like.device());
}

// `tokens` tokens of every row of `from` [B,.,...], from token from_token on, to those of `to`.
void copy_tokens(const Tensor& from, int64_t from_token, const Tensor& to, int64_t to_token,
                 int64_t tokens) {
  if (tokens == 0 || to.elements() == 0) return;
  if constexpr (kCuda) {
    if (on_cuda(to)) return cuda::copy_tokens(from, from_token, to, to_token, tokens);
  }
  const int64_t B = to.size(0);
  const int64_t token = static_cast<int64_t>(to.bytes()) / (B * to.size(1));
  for (int64_t b = 0; b < B; ++b) {
    std::memcpy(static_cast<char*>(to.raw()) + (b * to.size(1) + to_token) * token,
                static_cast<const char*>(from.raw()) + (b * from.size(1) + from_token) * token,
                static_cast<size_t>(tokens * token));
  }
}

}  // namespace

Tensor tokens_of(const Tensor& x, int64_t begin, int64_t end) {
  if (!x.defined()) return {};
  require(x.shape().rank() >= 2 && 0 <= begin && begin <= end && end <= x.size(1),
          "tokens_of: expected tokens within [B,T,...], got ", begin, " to ", end, " of ",
          x.shape());
  const Tensor piece = empty_piece(x, end - begin);
  copy_tokens(x, begin, piece, 0, end - begin);
  return piece;
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

Variable join_tokens(const std::vector<Variable>& pieces) {
  require(!pieces.empty(), "join_tokens: expected at least one piece");
  if (pieces.size() == 1) return pieces.front();
  int64_t tokens = 0;
  for (const Variable& piece : pieces) tokens += piece.size(1);
  const Tensor joined = empty_piece(pieces.front().value(), tokens);
  std::vector<int64_t> begins;
  int64_t at = 0;
  for (const Variable& piece : pieces) {
    std::vector<int64_t> expected = joined.shape().sizes();
    expected[1] = piece.size(1);
    require(piece.shape() == Shape(expected) && piece.dtype() == joined.dtype(),
            "join_tokens: ", piece.shape(), " ", name_of(piece.dtype()), " does not continue ",
            pieces.front().shape(), " ", name_of(joined.dtype()));
    copy_tokens(piece.value(), 0, joined, at, piece.size(1));
    begins.push_back(at);
    at += piece.size(1);
  }
  begins.push_back(at);
  return record("join_tokens", joined, pieces, [begins](Gradients& gradients) {
    for (size_t i = 0; i + 1 < begins.size(); ++i) {
      if (gradients.wanted(i)) {
        gradients.add(i, tokens_of(gradients.output(), begins[i], begins[i + 1]));
      }
    }
  });
}

}  // namespace linnet
