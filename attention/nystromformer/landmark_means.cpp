#include "attention/nystromformer/landmark_means.h"

#include <algorithm>

#include "attention/nystromformer/cuda/landmark_means.h"
#include "attention/nystromformer/landmark_means_rule.h"
#include "attention/primitives/common/binding.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

constexpr int64_t kGrain = 4096;

// `to` becomes the means of `from`, or dx of dmeans.
void average(const Tensor& from, const LandmarkCut& cut, bool backward, const Tensor& to) {
  if constexpr (kCuda) {
    if (on_cuda(from)) return cuda::landmark_means(from, cut, backward, to);
  }
  const Tensor& x = backward ? to : from;
  binding::dispatch(from.dtype(), [&](auto zero) {
    using Number = decltype(zero);
    const landmark_means_rule::Means<Number> rule{x.size(1),
                                                  x.size(2),
                                                  x.size(3),
                                                  cut.shares.size(1),
                                                  cut.owner.data<int32_t>(),
                                                  cut.begins.data<int32_t>(),
                                                  cut.shares.data<Number>()};
    const Number* in = from.data<Number>();
    Number* out = to.data<Number>();
    parallel_for(to.elements(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        out[i] = backward ? rule.gradient(in, i) : rule.mean(in, i);
      }
    });
  });
}

}  // namespace

LandmarkCut cut_landmarks(const Tensor& mask, int64_t B, int64_t T, int64_t landmarks,
                          LandmarkPadding padding, DType dtype, Device device) {
  const int64_t C = std::min(landmarks, T);
  const LandmarkCut cut{
      Tensor::empty({B, T}, DType::i32, device), Tensor::empty({B, C + 1}, DType::i32, device),
      Tensor::empty({B, C}, dtype, device), Tensor::empty({B, C}, DType::u8, device)};
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
          {cut.owner.data<int32_t>() + b * T, cut.begins.data<int32_t>() + b * (C + 1),
           cut.shares.data<Number>() + b * C, cut.used.data<uint8_t>() + b * C});
    }
  });
  return cut;
}

Variable landmark_means(const Variable& x, const LandmarkCut& cut) {
  const Tensor& from = x.value();
  binding::check_sequence(from, "landmark_means");
  const Tensor means = Tensor::empty({from.size(0), cut.shares.size(1), from.size(2), from.size(3)},
                                     from.dtype(), from.device());
  average(from, cut, false, means);
  return record("landmark_means", means, {x}, [shape = from.shape(), cut](Gradients& gradients) {
    const Tensor& dmeans = gradients.output();
    const Tensor dx = Tensor::empty(shape, dmeans.dtype(), dmeans.device());
    average(dmeans, cut, true, dx);
    gradients.add(0, dx);
  });
}

}  // namespace linnet
