// Positions: counted, sinusoidal, rotary.
#include "autograd/cuda/positions.h"

#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"
#include "core/cuda/vectors.h"

namespace linnet::cuda {
namespace {

// position * base^(-2 pair / width), in double: far positions keep their phase.
__device__ __forceinline__ double angle_of(int32_t position, int64_t pair, int64_t width,
                                           double base) {
  return position * pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(width));
}

// A pair of channels of a token has one angle in all heads.
struct Rotation {
  const void* x;
  const int32_t* position;
  void* y;
  int64_t rows, heads, channels, width;
  double theta;
  float sign;
};

// base^(-2 pair / width) of the rotated pairs: made once a block, for a power takes longer than an
// angle's sine.
struct Frequencies {
  __host__ __device__ Frequencies(SharedArena& arena, int64_t pairs)
      : of_pair(arena.take<double>(static_cast<size_t>(pairs))) {}
  double* of_pair;
};

// Turns values, `count` channels from an even one on; those that are not rotated stay.
template <int count>
class Turn {
 public:
  __device__ __forceinline__ Turn(const Rotation& a, const double* frequencies, int64_t row,
                                  int64_t first)
      : turned_(a.width - first) {
#pragma unroll
    for (int i = 0; i < count / 2; ++i) {
      if (2 * i >= turned_) break;
      double sine, cosine;
      sincos(a.position[row] * frequencies[first / 2 + i], &sine, &cosine);
      cosines_[i] = static_cast<float>(cosine);
      sines_[i] = a.sign * static_cast<float>(sine);
    }
  }
  __device__ __forceinline__ void apply(float (&values)[count]) const {
#pragma unroll
    for (int i = 0; i < count / 2; ++i) {
      if (2 * i >= turned_) break;
      const float a = values[2 * i], b = values[2 * i + 1];
      values[2 * i] = fmaf(a, cosines_[i], -(b * sines_[i]));
      values[2 * i + 1] = fmaf(a, sines_[i], b * cosines_[i]);
    }
  }

 private:
  int64_t turned_;
  float cosines_[count / 2] = {}, sines_[count / 2] = {};
};

// A thread takes the same channels of one token in all heads: 16 bytes of them, of several heads
// at a time, or a pair of which the row may cut the second.
template <typename T, bool in_vectors>
__device__ __forceinline__ void rotate_heads(const Rotation& a, const double* frequencies) {
  constexpr int kCount = in_vectors ? kVector<T> : 2, kHeads = 4;
  const int64_t parts = (a.channels + kCount - 1) / kCount, item = global_thread();
  const int64_t row = item / parts, first = item % parts * kCount;
  if (row >= a.rows) return;
  const Turn<kCount> turn(a, frequencies, row, first);
  const T* from = elements<T>(a.x, row * a.heads * a.channels + first);
  T* to = elements<T>(a.y, row * a.heads * a.channels + first);
  float values[kCount];
  if constexpr (in_vectors) {
    for (int64_t h = 0; h < a.heads; h += kHeads) {
      Packed<T, kCount> heads[kHeads];
#pragma unroll
      for (int n = 0; n < kHeads; ++n) {
        if (h + n < a.heads) heads[n].read(from + (h + n) * a.channels);
      }
#pragma unroll
      for (int n = 0; n < kHeads; ++n) {
        if (h + n >= a.heads) break;
        heads[n].unpack(values);
        turn.apply(values);
        store_vector(to + (h + n) * a.channels, values);
      }
    }
  } else {
    const bool both = first + 1 < a.channels;
    for (int64_t h = 0; h < a.heads; ++h) {
      values[0] = load(from + h * a.channels);
      values[1] = both ? load(from + h * a.channels + 1) : 0.0f;
      turn.apply(values);
      store(to + h * a.channels, values[0]);
      if (both) store(to + h * a.channels + 1, values[1]);
    }
  }
}

__global__ void rotary(Rotation a, bool narrow, bool in_vectors) {
  SharedArena arena;
  const Frequencies frequencies(arena, a.width / 2);
  for (int64_t pair = threadIdx.x; pair < a.width / 2; pair += blockDim.x) {
    frequencies.of_pair[pair] =
        pow(a.theta, -2.0 * static_cast<double>(pair) / static_cast<double>(a.width));
  }
  __syncthreads();
  if (narrow) {
    in_vectors ? rotate_heads<kernel_bf16, true>(a, frequencies.of_pair)
               : rotate_heads<kernel_bf16, false>(a, frequencies.of_pair);
  } else {
    in_vectors ? rotate_heads<float, true>(a, frequencies.of_pair)
               : rotate_heads<float, false>(a, frequencies.of_pair);
  }
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

void rotate(const Tensor& x, const Tensor& positions, int64_t width, double theta, int sign,
            const Tensor& y) {
  constexpr int kThreads = 256;
  const DType dtype = x.dtype();
  const Rotation a{array_of(dtype, x),
                   pointer<int32_t>(positions),
                   array_of(dtype, y),
                   positions.elements(),
                   x.size(2),
                   x.size(3),
                   width,
                   theta,
                   static_cast<float>(sign)};
  const auto vector = static_cast<int64_t>(16 / size_of(dtype));
  const bool in_vectors = a.channels % vector == 0 && are_aligned(a.x, a.y);
  const int64_t together = in_vectors ? vector : 2;
  launch({"rotary", blocks_for(a.rows * ((a.channels + together - 1) / together), kThreads),
          kThreads, shared_bytes<Frequencies>(width / 2)},
         rotary, a, dtype == DType::bf16, in_vectors);
}

}  // namespace linnet::cuda
