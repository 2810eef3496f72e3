// Positions: counted, sinusoidal, rotary.
#include "autograd/cuda/positions.h"

#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

// position * base^(-2 pair / width), in double: far positions keep their phase.
__device__ __forceinline__ double angle_of(int32_t position, int64_t pair, int64_t width,
                                           double base) {
  return position * pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(width));
}

}  // namespace

void count_positions(const Tensor& positions, int64_t offset) {
  int32_t* to = pointer<int32_t>(positions);
  const int64_t time = positions.size(1);
  for_each("counted_positions", positions.elements(), [to, time, offset] __device__(int64_t i) {
    to[i] = static_cast<int32_t>(offset + i % time);
  });
}

void shift_right(const Tensor& ids, int32_t first, const Tensor& shifted) {
  const int32_t* from = pointer<int32_t>(ids);
  int32_t* to = pointer<int32_t>(shifted);
  const int64_t time = ids.size(1);
  for_each("shifted_right", ids.elements(), [to, from, time, first] __device__(int64_t i) {
    to[i] = i % time == 0 ? first : from[i - 1];
  });
}

void add_sinusoidal(const Tensor& x, const Tensor& positions, const Tensor& y) {
  const StoredValues from = stored_values(x);
  const int32_t* position = pointer<int32_t>(positions);
  const StoredResults to = stored_results(y);
  const int64_t channels = x.size(2), pairs = (channels + 1) / 2;
  for_each("add_sinusoidal", positions.elements() * pairs, [=] __device__(int64_t i) {
    const int64_t row = i / pairs, pair = i % pairs;
    const double angle = angle_of(position[row], pair, channels, 10000.0);
    const int64_t at = row * channels + 2 * pair;
    to.put(at, from.at(at) + static_cast<float>(sin(angle)));
    if (2 * pair + 1 < channels) {
      to.put(at + 1, from.at(at + 1) + static_cast<float>(cos(angle)));
    }
  });
}

// One thread takes a pair of channels of one token through all heads: one angle for them all.
void rotate(const Tensor& x, const Tensor& positions, int64_t width, double theta, int sign,
            const Tensor& y) {
  const StoredValues from = stored_values(x);
  const int32_t* position = pointer<int32_t>(positions);
  const StoredResults to = stored_results(y);
  const int64_t heads = x.size(2), channels = x.size(3), pairs = (channels + 1) / 2;
  for_each("rotary", positions.elements() * pairs, [=] __device__(int64_t i) {
    const int64_t row = i / pairs, first = i % pairs * 2;
    float cosine = 1, sine = 0;
    if (first < width) {
      const double angle = angle_of(position[row], first / 2, width, theta);
      cosine = static_cast<float>(cos(angle));
      sine = static_cast<float>(sign) * static_cast<float>(sin(angle));
    }
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t at = (row * heads + h) * channels + first;
      if (first >= width) {
        to.put(at, from.at(at));
        if (first + 1 < channels) to.put(at + 1, from.at(at + 1));
        continue;
      }
      const float a = from.at(at), b = from.at(at + 1);
      to.put(at, a * cosine - b * sine);
      to.put(at + 1, a * sine + b * cosine);
    }
  });
}

}  // namespace linnet::cuda
