#include "attention/common/cuda/lrpe.h"

#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

// One thread takes a pair of channels of one token through all heads: one angle for them all. A
// last channel without a partner, or one beyond the frequencies, is not rotated.
struct Pairs {
  const int32_t* positions;
  const float* frequencies;
  const uint8_t* mask;
  int64_t heads, channels, rotated;

  __host__ __device__ int64_t count() const { return (channels + 1) / 2; }
  __device__ bool valid(int64_t token) const { return mask == nullptr || mask[token] != 0; }
  __device__ int64_t index(int64_t token, int64_t head, int64_t pair) const {
    return (token * heads + head) * channels + 2 * pair;
  }
  __device__ void angle(int64_t token, int64_t pair, float& cosine, float& sine) const {
    // In double: far positions keep their phase.
    const double angle = positions[token] * static_cast<double>(frequencies[pair]);
    cosine = static_cast<float>(cos(angle));
    sine = static_cast<float>(sin(angle));
  }
  // to = from, or 0, for a pair that is not rotated.
  __device__ void pass(int64_t token, int64_t pair, bool zero, const StoredValues& from,
                       const StoredResults& to) const {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t c = 2 * pair; c < channels && c < 2 * pair + 2; ++c) {
        const int64_t at = index(token, h, pair) + c - 2 * pair;
        to.put(at, zero ? 0.0f : from.at(at));
      }
    }
  }
};

Pairs pairs_of(const Tensor& x, const Tensor& positions, const Tensor& frequencies,
               const Tensor& mask) {
  return {pointer<const int32_t>(positions),
          pointer<const float>(frequencies),
          pointer_or_null<const uint8_t>(mask),
          x.size(2),
          x.size(3),
          frequencies.elements()};
}

}  // namespace

void learned_rotary(const Tensor& x, const Tensor& positions, const Tensor& frequencies,
                    const Tensor& mask, const Tensor& y) {
  const Pairs pairs = pairs_of(x, positions, frequencies, mask);
  const StoredValues from = stored_values(x);
  const StoredResults to = stored_results(y);
  for_each("learned_rotary", positions.elements() * pairs.count(), [=] __device__(int64_t i) {
    const int64_t token = i / pairs.count(), pair = i % pairs.count();
    if (!pairs.valid(token) || pair >= pairs.rotated) {
      pairs.pass(token, pair, !pairs.valid(token), from, to);
      return;
    }
    float cosine = 1, sine = 0;
    pairs.angle(token, pair, cosine, sine);
    for (int64_t h = 0; h < pairs.heads; ++h) {
      const int64_t at = pairs.index(token, h, pair);
      const float a = from.at(at), b = from.at(at + 1);
      to.put(at, a * cosine - b * sine);
      to.put(at + 1, a * sine + b * cosine);
    }
  });
}

void learned_rotary_backward(const Tensor& x, const Tensor& positions, const Tensor& frequencies,
                             const Tensor& mask, const Tensor& dy, const Tensor& dx,
                             const Tensor& terms) {
  const Pairs pairs = pairs_of(x, positions, frequencies, mask);
  const StoredValues from = stored_values(x), d = stored_values(dy);
  const StoredResults to = stored_results(dx);
  float* term = pointer<float>(terms);
  for_each(
      "learned_rotary_backward", positions.elements() * pairs.count(), [=] __device__(int64_t i) {
        const int64_t token = i / pairs.count(), pair = i % pairs.count();
        const bool valid = pairs.valid(token), rotated = pair < pairs.rotated;
        if (rotated) term[token * pairs.rotated + pair] = 0;
        if (!valid || !rotated) {
          pairs.pass(token, pair, !valid, d, to);
          return;
        }
        float cosine = 1, sine = 0, along = 0;
        pairs.angle(token, pair, cosine, sine);
        for (int64_t h = 0; h < pairs.heads; ++h) {
          const int64_t at = pairs.index(token, h, pair);
          const float u = d.at(at), v = d.at(at + 1);
          const float da = u * cosine + v * sine, db = v * cosine - u * sine;
          to.put(at, da);
          to.put(at + 1, db);
          along += from.at(at) * db - from.at(at + 1) * da;
        }
        term[token * pairs.rotated + pair] = static_cast<float>(pairs.positions[token]) * along;
      });
}

}  // namespace linnet::cuda
