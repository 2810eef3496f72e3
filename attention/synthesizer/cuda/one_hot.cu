#include "attention/synthesizer/cuda/one_hot.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

template <typename T>
void fill(const Tensor& positions, const Tensor& rows) {
  const int32_t* from = pointer<int32_t>(positions);
  T* to = pointer<T>(rows);
  const int64_t count = rows.size(3), heads = rows.size(2);
  for_each("one_hot_positions", rows.elements(), [=] __device__(int64_t i) {
    store(to + i, from[i / count / heads] == i % count ? 1.0f : 0.0f);
  });
}

}  // namespace

void one_hot_positions(const Tensor& positions, const Tensor& rows) {
  dispatch(rows.dtype(), [&](auto zero) { fill<decltype(zero)>(positions, rows); });
}

}  // namespace linnet::cuda
