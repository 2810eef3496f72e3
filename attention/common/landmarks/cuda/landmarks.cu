#include "attention/common/landmarks/cuda/landmarks.h"

#include "attention/common/landmarks/landmark_rule.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

using landmark_rule::Logits;

const uint8_t* bytes_of(const Tensor& mask) {
  return mask.defined() ? pointer<uint8_t>(mask) : nullptr;
}

Logits<float> logits_of(const Tensor& k, const Tensor& w, const Tensor& normalizer,
                        const Tensor& mask, double scale, bool squares) {
  return {{k.size(0), k.size(1), k.size(2), w.size(2), k.size(3)},
          pointer<float>(k),
          pointer<float>(w),
          pointer<double>(normalizer),
          bytes_of(mask),
          static_cast<float>(scale),
          squares ? 0.5f : 0.0f};
}

}  // namespace

void landmark_members(const Tensor& mask, const Tensor& members) {
  const int64_t T = members.size(1), H = members.size(2), C = members.size(3);
  const uint8_t* valid = bytes_of(mask);
  float* to = pointer<float>(members);
  // A thread scans a row: the rank of a token is a prefix sum of the mask.
  for_each("landmark_members", members.size(0), [=] __device__(int64_t b) {
    int64_t count = 0, rank = 0;
    for (int64_t t = 0; t < T; ++t) count += valid == nullptr || valid[b * T + t] != 0 ? 1 : 0;
    for (int64_t t = 0; t < T; ++t) {
      if (valid != nullptr && valid[b * T + t] == 0) continue;
      const Landmark mine = landmark_of(rank++, count, C);
      for (int64_t h = 0; h < H; ++h) {
        to[((b * T + t) * H + h) * C + mine.number] = 1.0f / static_cast<float>(mine.tokens);
      }
    }
  });
}

void landmark_logits(const Tensor& k, const Tensor& w, const Tensor& normalizer, const Tensor& mask,
                     double scale, bool squares, const Tensor& logits) {
  const Logits<float> rule = logits_of(k, w, normalizer, mask, scale, squares);
  float* to = pointer<float>(logits);
  for_each("landmark_logits", logits.elements(),
           [=] __device__(int64_t i) { to[i] = rule.logit(i); });
}

void landmark_logits_backward(const Tensor& k, const Tensor& w, const Tensor& normalizer,
                              const Tensor& mask, double scale, bool squares, const Tensor& dlogits,
                              const Tensor& dk, const Tensor& dw) {
  const Logits<float> rule = logits_of(k, w, normalizer, mask, scale, squares);
  const float* d = pointer<float>(dlogits);
  float *to_keys = pointer<float>(dk), *to_proposals = pointer<float>(dw);
  for_each("landmark_logits_dk", dk.elements(),
           [=] __device__(int64_t i) { to_keys[i] = rule.dkey(d, i); });
  for_each("landmark_logits_dw", dw.elements(),
           [=] __device__(int64_t i) { to_proposals[i] = rule.dproposal(d, i); });
}

}  // namespace linnet::cuda
