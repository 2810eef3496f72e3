#include "attention/common/joint/position_logits.h"

#include "autograd/arithmetic.h"
#include "autograd/layout.h"
#include "autograd/products.h"

namespace linnet {

Variable position_logits(const Variable& q, const Variable& r) {
  const int64_t B = q.size(0), T = q.size(1), H = q.size(2), K = q.size(3), L = r.size(0);
  // One product for each head.
  const Variable queries = reshape(permute(q, {2, 0, 1, 3}), {H, B * T, K});
  const Variable logits = matmul(queries, permute(r, {1, 0, 2}), Transpose::no, Transpose::yes);
  return transpose(reshape(logits, {H, B, T, L}), 0, 1);
}

}  // namespace linnet
