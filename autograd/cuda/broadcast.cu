// Arithmetic of two operands of which dimensions may be repeated.
#include "autograd/cuda/broadcast.h"

#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {

void combine(Arithmetic operation, const Tensor& a, const Tensor& b, const Views<2>& views,
             const Tensor& y) {
  const StoredValues left = stored_values(a), right = stored_values(b);
  const StoredResults to = stored_results(y);
  if (views.rank == 1 && views.step(0) == 1 && views.step(1) == 1) {
    for_each("combine", y.elements(), [=] __device__(int64_t i) {
      to.put(i, combine_elements(operation, left.at(i), right.at(i)));
    });
    return;
  }
  for_each("combine_views", y.elements(), [=] __device__(int64_t i) {
    to.put(i,
           combine_elements(operation, left.at(views.offset(0, i)), right.at(views.offset(1, i))));
  });
}

}  // namespace linnet::cuda
