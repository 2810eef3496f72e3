#include "attention/common/product_division.h"

#include "attention/common/mixer_support.h"
#include "autograd/activation.h"
#include "autograd/arithmetic.h"

namespace linnet {

Variable divide_by_products(const Variable& numerators, const Variable& queries,
                            const Variable& sums, Normalizer normalizer, double floor,
                            const Tensor& query_mask) {
  const Variable smallest(Tensor::full({}, floor, sums.dtype(), sums.value().device()));
  const Variable products =
      dot(zeros_for_masked(queries, query_mask), zeros_for_masked(sums, query_mask));
  const Variable above = normalizer == Normalizer::add
                             ? products
                             : activate(subtract(products, smallest), Activation::relu);
  return divide(zeros_for_masked(numerators, query_mask), add(above, smallest));
}

}  // namespace linnet
