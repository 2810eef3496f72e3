// Arithmetic of two operands of which dimensions may be repeated.
#include "autograd/cuda/broadcast.h"

#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"
#include "core/cuda/vectors.h"

namespace linnet::cuda {
namespace {

// Of two contiguous operands.
struct Combine {
  Arithmetic operation;
  const void *a, *b;
  void* y;

  template <typename T, int count>
  __device__ __forceinline__ void at(int64_t i) const {
    float left[count], right[count];
    load_vector(elements<T>(a, i), left);
    load_vector(elements<T>(b, i), right);
#pragma unroll
    for (int j = 0; j < count; ++j) left[j] = combine_elements(operation, left[j], right[j]);
    store_vector(elements<T>(y, i), left);
  }
};

}  // namespace

void combine(Arithmetic operation, const Tensor& a, const Tensor& b, const Views<2>& views,
             const Tensor& y) {
  if (views.rank == 1 && views.step(0) == 1 && views.step(1) == 1) {
    const DType dtype = y.dtype();
    const Combine f{operation, array_of(dtype, a), array_of(dtype, b), array_of(dtype, y)};
    return for_each_vector("combine", dtype, y.elements(), are_aligned(f.a, f.b, f.y), f);
  }
  const StoredValues left = stored_values(a), right = stored_values(b);
  const StoredResults to = stored_results(y);
  for_each("combine_views", y.elements(), [=] __device__(int64_t i) {
    to.put(i,
           combine_elements(operation, left.at(views.offset(0, i)), right.at(views.offset(1, i))));
  });
}

}  // namespace linnet::cuda
