// Positions: counted, sinusoidal, rotary.
#include "autograd/cuda/positions.h"

#include "core/cuda/for_each.h"
#include "core/cuda/vectors.h"

namespace linnet::cuda {
namespace {

// base^(-2 pair / width) of the pairs of channels, in double, so that far positions keep their
// phase: made once a block, for a power takes longer than a sine and a cosine.
class Frequencies {
 public:
  __host__ __device__ Frequencies(SharedArena& arena, int64_t pairs)
      : pairs_(pairs), of_pair_(arena.take<double>(static_cast<size_t>(pairs))) {}

  __device__ __forceinline__ void make(double base, int64_t width) const {
    for (int64_t pair = threadIdx.x; pair < pairs_; pair += blockDim.x) {
      of_pair_[pair] = pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(width));
    }
    __syncthreads();
  }
  // Sines and cosines of the pairs from `first` on at a position; 0 and 1 beyond the last.
  template <int count>
  __device__ __forceinline__ void at(int32_t position, int64_t first, float (&sines)[count],
                                     float (&cosines)[count]) const {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      double sine = 0, cosine = 1;
      if (first + i < pairs_) sincos(position * of_pair_[first + i], &sine, &cosine);
      sines[i] = static_cast<float>(sine);
      cosines[i] = static_cast<float>(cosine);
    }
  }

 private:
  int64_t pairs_;
  double* of_pair_;
};

// Channels of a row that a thread takes: 16 bytes, or a pair of which the row may cut the second.
template <typename T, bool in_vectors>
inline constexpr int kChannels = in_vectors ? kVector<T> : 2;
int64_t channels_of_thread(DType dtype, bool in_vectors) {
  return in_vectors ? static_cast<int64_t>(16 / size_of(dtype)) : 2;
}
bool reads_rows_in_vectors(DType dtype, int64_t channels, const void* x, const void* y) {
  return channels % channels_of_thread(dtype, true) == 0 && are_aligned(x, y);
}

// The first `left` of a pair, or a vector.
template <typename T, int count>
__device__ __forceinline__ void load_channels(const T* from, int64_t left, float (&values)[count]) {
  if constexpr (count == 2) {
    values[0] = load(from);
    values[1] = left > 1 ? load(from + 1) : 0.0f;
  } else {
    load_vector(from, values);
  }
}
template <typename T, int count>
__device__ __forceinline__ void store_channels(T* to, int64_t left, const float (&values)[count]) {
  if constexpr (count == 2) {
    store(to, values[0]);
    if (left > 1) store(to + 1, values[1]);
  } else {
    store_vector(to, values);
  }
}

struct Encoding {
  const void* x;
  const int32_t* position;
  void* y;
  int64_t rows, channels;
};
constexpr int kEncodedRows = 16;  // of a block

template <typename T, bool in_vectors>
__device__ __forceinline__ void encode_rows(const Encoding& a, const Frequencies& frequencies) {
  constexpr int kCount = kChannels<T, in_vectors>;
  const int64_t parts = (a.channels + kCount - 1) / kCount;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kEncodedRows;
  const int64_t items = min(int64_t{kEncodedRows}, a.rows - begin) * parts;
  for (int64_t item = threadIdx.x; item < items; item += blockDim.x) {
    const int64_t row = begin + item / parts, first = item % parts * kCount;
    const int64_t at = row * a.channels + first, left = a.channels - first;
    float values[kCount], sines[kCount / 2], cosines[kCount / 2];
    load_channels(elements<T>(a.x, at), left, values);
    frequencies.at(a.position[row], first / 2, sines, cosines);
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      values[2 * i] += sines[i];
      values[2 * i + 1] += cosines[i];
    }
    store_channels(elements<T>(a.y, at), left, values);
  }
}

__global__ void sinusoidal(Encoding a, bool narrow, bool in_vectors) {
  SharedArena arena;
  const Frequencies frequencies(arena, (a.channels + 1) / 2);
  frequencies.make(10000.0, a.channels);
  with_elements(narrow, in_vectors, [&](auto zero, auto vectors) {
    encode_rows<decltype(zero), vectors()>(a, frequencies);
  });
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

// Turns the pairs among `count` channels; those behind the first `turned` stay.
template <int count>
__device__ __forceinline__ void turn(float (&values)[count], int64_t turned,
                                     const float (&sines)[count / 2],
                                     const float (&cosines)[count / 2]) {
#pragma unroll
  for (int i = 0; i < count / 2; ++i) {
    if (2 * i >= turned) break;
    const float a = values[2 * i], b = values[2 * i + 1];
    values[2 * i] = fmaf(a, cosines[i], -(b * sines[i]));
    values[2 * i + 1] = fmaf(a, sines[i], b * cosines[i]);
  }
}

// A thread takes the same channels of one token in all heads; vectors of several heads are on
// their way together.
template <typename T, bool in_vectors>
__device__ __forceinline__ void rotate_heads(const Rotation& a, const Frequencies& frequencies) {
  constexpr int kCount = kChannels<T, in_vectors>, kHeads = 4;
  const int64_t parts = (a.channels + kCount - 1) / kCount, item = global_thread();
  const int64_t row = item / parts, first = item % parts * kCount;
  if (row >= a.rows) return;
  float values[kCount], sines[kCount / 2], cosines[kCount / 2];
  frequencies.at(a.position[row], first / 2, sines, cosines);
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) sines[i] *= a.sign;
  const T* from = elements<T>(a.x, row * a.heads * a.channels + first);
  T* to = elements<T>(a.y, row * a.heads * a.channels + first);
  const int64_t left = a.channels - first, turned = a.width - first;
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
        turn(values, turned, sines, cosines);
        store_vector(to + (h + n) * a.channels, values);
      }
    }
  } else {
    for (int64_t h = 0; h < a.heads; ++h) {
      load_channels(from + h * a.channels, left, values);
      turn(values, turned, sines, cosines);
      store_channels(to + h * a.channels, left, values);
    }
  }
}

__global__ void rotary(Rotation a, bool narrow, bool in_vectors) {
  SharedArena arena;
  const Frequencies frequencies(arena, a.width / 2);
  frequencies.make(a.theta, a.width);
  with_elements(narrow, in_vectors, [&](auto zero, auto vectors) {
    rotate_heads<decltype(zero), vectors()>(a, frequencies);
  });
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
  constexpr int kThreads = 256;
  const DType dtype = x.dtype();
  const Encoding a{array_of(dtype, x), pointer<int32_t>(positions), array_of(dtype, y),
                   positions.elements(), x.size(2)};
  launch({"sinusoidal", blocks_for(a.rows, kEncodedRows), kThreads,
          shared_bytes<Frequencies>((a.channels + 1) / 2)},
         sinusoidal, a, dtype == DType::bf16, reads_rows_in_vectors(dtype, a.channels, a.x, a.y));
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
  const bool in_vectors = reads_rows_in_vectors(dtype, a.channels, a.x, a.y);
  const int64_t together = channels_of_thread(dtype, in_vectors);
  launch({"rotary", blocks_for(a.rows * ((a.channels + together - 1) / together), kThreads),
          kThreads, shared_bytes<Frequencies>(width / 2)},
         rotary, a, dtype == DType::bf16, in_vectors);
}

}  // namespace linnet::cuda
