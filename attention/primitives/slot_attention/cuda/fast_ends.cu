// See fast_ends.h. Bytes of a gradient's element: 8 per split, and 8 of its slot's normalizer.
#include "attention/primitives/slot_attention/cuda/fast_ends.h"

#include <limits>

#include "core/cuda/for_each.h"

namespace linnet::cuda::slot_attention_fast::backward_detail {

Ends::Ends(const Backward& call, int64_t splits) : call_(call), splits_(splits) {
  const auto room = [&](int64_t count) {
    const int64_t B = count * call.memories(), H = call.q.H, N = call.logits.K;
    return Gradients{Tensor::empty({B, H, N, call.k.K}, DType::f32, call.device),
                     Tensor::empty({B, H, N, call.v.K}, DType::f32, call.device),
                     Tensor::empty({B, H, N}, DType::f32, call.device)};
  };
  if (splits == 1) return;
  own_ = room(splits - 1);
  after_ = room(splits);
}

SplitSums Ends::sums() const {
  return {pointer<float>(own_.keys), pointer<float>(own_.values), pointer<float>(own_.sums)};
}

void Ends::join(const double* normalizers) const {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const int64_t K = call_.k.K, V = call_.v.K, splits = splits_;
  const int64_t slots = call_.memories() * call_.q.H * call_.logits.K;
  const SplitSums given{const_cast<float*>(call_.dkeys_out), const_cast<float*>(call_.dvalues_out),
                        call_.dsums};
  const SplitSums own = sums();
  const SplitSums after{pointer<float>(after_.keys), pointer<float>(after_.values),
                        pointer<float>(after_.sums)};
  for_each("slot_attention_fast_ends", slots * (K + V + 1), [=] __device__(int64_t i) {
    const int64_t slot = i / (K + V + 1), column = i % (K + V + 1);
    const bool of_keys = column < K, of_sums = column == K + V;
    const int64_t width = of_sums ? 1 : of_keys ? K : V, all = slots * width;
    const int64_t at = slot * width + (of_sums ? 0 : of_keys ? column : column - K);
    const auto of = [&](const SplitSums& x) {
      return of_sums ? x.sums : of_keys ? x.keys : x.values;
    };
    const float* last = of(given);
    const float* added = of(own);
    float* to = of(after);
    to[(splits - 1) * all + at] = last == nullptr ? 0.0f : last[at];
    float gradient = added[(splits - 2) * all + at];  // with that of the last
    for (int64_t split = splits - 2; split >= 0; --split) {
      to[split * all + at] = gradient;
      if (split == 0) return;
      float part = 1;
      if (normalizers != nullptr) {
        const double before = normalizers[split * slots + slot];
        const double later = normalizers[(split + 1) * slots + slot];
        part = before == kNone ? 0.0f : expf(static_cast<float>(before - later));
      }
      gradient = gradient * part + added[(split - 1) * all + at];
    }
  });
}

void Ends::give(Backward& call, BackwardWork& work) const {
  work.dsums_after = call.dsums;
  if (splits_ == 1) return;
  call.dkeys_out = pointer<const float>(after_.keys);
  call.dvalues_out = pointer<const float>(after_.values);
  work.dsums_after = pointer<const float>(after_.sums);
}

}  // namespace linnet::cuda::slot_attention_fast::backward_detail
