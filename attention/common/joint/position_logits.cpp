#include "attention/common/joint/position_logits.h"

#include "attention/common/joint/chunks.h"
#include "autograd/arithmetic.h"
#include "core/gemm.h"

namespace linnet {
namespace {

// Row b of x [B,H,.,.] as [H,.,.].
Tensor of_row(const Tensor& x, int64_t b) {
  return x.rows(b, b + 1).reshape({x.size(1), x.size(2), x.size(3)});
}

}  // namespace

Variable position_logits(const Variable& q, const Variable& r) {
  const int64_t L = r.size(0), H = r.size(1), K = r.size(2);
  const Variable queries = swap_middle(q);  // [B,H,T,K]
  const Variable vectors = reshape(swap_middle(reshape(r, {1, L, H, K})), {H, L, K});
  const int64_t B = q.size(0), T = q.size(1);
  const Tensor logits = Tensor::empty({B, H, T, L}, q.dtype(), q.value().device());
  for (int64_t b = 0; b < B; ++b) {
    batched_gemm(of_row(queries.value(), b), Transpose::no, vectors.value(), Transpose::yes,
                 of_row(logits, b));
  }
  return record("position_logits", logits, {queries, vectors},
                [from = queries.value(), table = vectors.value()](Gradients& gradients) {
                  const Tensor& d = gradients.output();
                  const Tensor dq = Tensor::empty(from.shape(), from.dtype(), from.device());
                  const Tensor dr = Tensor::zeros(table.shape(), table.dtype(), table.device());
                  for (int64_t b = 0; b < d.size(0); ++b) {
                    batched_gemm(of_row(d, b), Transpose::no, table, Transpose::no, of_row(dq, b));
                    batched_gemm(of_row(d, b), Transpose::yes, of_row(from, b), Transpose::no, dr,
                                 1, 1);
                  }
                  gradients.add(0, dq);
                  gradients.add(1, dr);
                });
}

}  // namespace linnet
