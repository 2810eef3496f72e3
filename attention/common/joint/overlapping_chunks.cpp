#include "attention/common/joint/overlapping_chunks.h"

#include "attention/common/joint/chunks.h"
#include "attention/common/joint/cuda/overlapping_chunks.h"
#include "attention/common/joint/overlapping_chunks_rule.h"
#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/fill_elements.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

constexpr int64_t kGrain = 4096;

}  // namespace

Variable overlapping_chunk_rows(const Variable& x, int64_t size, int64_t overlap) {
  if (overlap == 0) return chunk_rows(x, size);
  const Tensor& from = x.value();
  const int64_t B = from.size(0), T = from.size(1);
  const int64_t width = from.elements() / std::max<int64_t>(1, B * T);
  const overlapping_chunks_rule::Rows rule{T, size, overlap, (T + size - 1) / size, width};
  std::vector<int64_t> sizes = from.shape().sizes();
  sizes[0] = B * rule.chunks;
  sizes[1] = rule.length();
  const Tensor y = Tensor::empty(Shape(sizes), from.dtype(), from.device());
  if constexpr (kCuda) {
    if (on_device(from)) cuda::overlapping_chunk_rows(rule, from, y);
  }
  if (!on_device(from)) {
    binding::dispatch(from.dtype(), [&](auto zero) {
      using Number = decltype(zero);
      fill_elements<Number>(y, kGrain,
                            [&](int64_t i) { return rule.element(from.data<Number>(), i); });
    });
  }
  return record(
      "overlapping_chunk_rows", y, {x}, [rule, shape = from.shape()](Gradients& gradients) {
        const Tensor& dy = gradients.output();
        const Tensor dx = Tensor::empty(shape, dy.dtype(), dy.device());
        if constexpr (kCuda) {
          if (on_device(dy)) cuda::overlapping_chunk_rows_backward(rule, dy, dx);
        }
        if (!on_device(dy)) {
          binding::dispatch(dy.dtype(), [&](auto zero) {
            using Number = decltype(zero);
            fill_elements<Number>(dx, kGrain,
                                  [&](int64_t i) { return rule.gradient(dy.data<Number>(), i); });
          });
        }
        gradients.add(0, dx);
      });
}

}  // namespace linnet
