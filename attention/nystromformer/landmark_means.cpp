#include "attention/nystromformer/landmark_means.h"

#include <algorithm>

#include "attention/nystromformer/cuda/landmark_means.h"
#include "attention/nystromformer/landmark_means_rule.h"
#include "attention/primitives/common/binding.h"
#include "autograd/arithmetic.h"
#include "autograd/indexing.h"
#include "core/cuda/backend.h"

namespace linnet {
LandmarkCut cut_landmarks(const Tensor& mask, int64_t B, int64_t T, int64_t landmarks,
                          LandmarkPadding padding, DType dtype, Device device) {
  const int64_t C = std::min(landmarks, T);
  const LandmarkCut cut{Tensor::empty({B, T}, DType::i32, device),
                        Tensor::empty({B, C}, dtype, device),
                        Tensor::empty({B, C}, DType::u8, device)};
  if constexpr (kCuda) {
    if (on_cuda(cut.owner)) {
      cuda::cut_landmarks(mask, padding, cut);
      return cut;
    }
  }
  binding::dispatch(dtype, [&](auto zero) {
    using Number = decltype(zero);
    for (int64_t b = 0; b < B; ++b) {
      const uint8_t* valid = mask.defined() ? mask.data<uint8_t>() + b * T : nullptr;
      landmark_means_rule::cut_row<Number>(
          valid, T, C, padding,
          {cut.owner.data<int32_t>() + b * T, cut.shares.data<Number>() + b * C,
           cut.used.data<uint8_t>() + b * C});
    }
  });
  return cut;
}

Variable landmark_means(const Variable& x, const LandmarkCut& cut) {
  binding::check_sequence(x.value(), "landmark_means");
  const int64_t C = cut.shares.size(1);
  const Variable shares(cut.shares.reshape({x.size(0), C, 1, 1}));
  return multiply(scatter_add(x, cut.owner, C), shares);
}

}  // namespace linnet
