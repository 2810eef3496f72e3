#include "attention/common/landmarks/cuda/landmarks.h"

#include "attention/common/landmarks/landmark_rule.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

using landmark_rule::Keys;
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

Keys<float> keys_of(const Tensor& m, const Tensor& w, const Tensor& log_normalizer, double scale) {
  return {m.size(3), pointer<float>(m), pointer<float>(w), pointer<double>(log_normalizer),
          static_cast<float>(scale)};
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

void landmark_keys(const Tensor& m, const Tensor& w, const Tensor& log_normalizer, double scale,
                   const Tensor& keys) {
  const Keys<float> rule = keys_of(m, w, log_normalizer, scale);
  float* to = pointer<float>(keys);
  for_each("landmark_keys", keys.elements(), [=] __device__(int64_t i) { to[i] = rule.key(i); });
}

void landmark_keys_backward(const Tensor& m, const Tensor& w, const Tensor& log_normalizer,
                            double scale, const Tensor& dkeys, const Tensor& dm, const Tensor& dw,
                            const Tensor& dlog_normalizer) {
  const Keys<float> rule = keys_of(m, w, log_normalizer, scale);
  const float* d = pointer<float>(dkeys);
  float *to_means = pointer<float>(dm), *to_proposals = pointer<float>(dw);
  double* to_normalizer = pointer<double>(dlog_normalizer);
  for_each("landmark_keys_backward", dm.elements(), [=] __device__(int64_t i) {
    to_means[i] = rule.dmean(d, i);
    to_proposals[i] = rule.dproposal(d, i);
  });
  for_each("landmark_keys_dlog_normalizer", dlog_normalizer.elements(),
           [=] __device__(int64_t i) { to_normalizer[i] = rule.dlog_normalizer(d, i); });
}

void with_one(const Tensor& x, const Tensor& mask, const Tensor& y) {
  const int64_t H = x.size(2), K = x.size(3);
  const uint8_t* valid = bytes_of(mask);
  const float* from = pointer<float>(x);
  float* to = pointer<float>(y);
  for_each("with_one", y.elements(), [=] __device__(int64_t i) {
    const int64_t row = i / (K + 1), e = i % (K + 1);
    const bool there = valid == nullptr || valid[row / H] != 0;
    to[i] = !there ? 0.0f : e < K ? from[row * K + e] : 1.0f;
  });
}

void with_one_backward(const Tensor& dy, const Tensor& mask, const Tensor& dx) {
  const int64_t H = dx.size(2), K = dx.size(3);
  const uint8_t* valid = bytes_of(mask);
  const float* from = pointer<float>(dy);
  float* to = pointer<float>(dx);
  for_each("with_one_backward", dx.elements(), [=] __device__(int64_t i) {
    const int64_t row = i / K;
    const bool there = valid == nullptr || valid[row / H] != 0;
    to[i] = there ? from[row * (K + 1) + i % K] : 0.0f;
  });
}

}  // namespace linnet::cuda
