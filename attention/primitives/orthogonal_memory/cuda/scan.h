// Scans of sums along a chunk of the orthogonal memory, segmented by windows and documents.
// Internal to this folder and that of lavo.
//
// The sums of a chunk lie in shared memory, [64][D + padding]. A warp has columns of its own, of
// which a lane has a few neighbours along a quarter of the tokens. A lane first sums its tokens
// alone, in two groups or, in chunks that are not even, one by one; the four lanes of a column then
// say to each other what their quarters leave, so that each knows what was before its own.
#pragma once

#include "attention/primitives/orthogonal_memory/cuda/chunk.h"

namespace linnet::cuda::orthogonal_memory_fast {

inline constexpr int kGroup = 8;  // tokens that a scan looks at together

// What a quarter of a chunk has in it, the most of these.
enum class Crossed : int { nothing, window, segment };

// The part of a lane in the columns of a block of so many warps.
template <int D, int warps>
struct ScanPart {
  static constexpr int kCount = D / 8 / warps;  // columns of a lane
  static constexpr int kStride = D + kPadding;
  static constexpr int kQuarter = kChunk / 4;

  struct alignas(4 * kCount) Columns {
    float values[kCount];

    __device__ __forceinline__ Columns& operator+=(const Columns& other) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] += other.values[i];
      return *this;
    }
    __device__ __forceinline__ Columns operator+(const Columns& other) const {
      Columns sum = *this;
      return sum += other;
    }
    // Those of another lane.
    __device__ __forceinline__ Columns of_lane(int lane) const {
      Columns other;
#pragma unroll
      for (int i = 0; i < kCount; ++i) other.values[i] = __shfl_sync(~0u, values[i], lane);
      return other;
    }
  };

  __device__ __forceinline__ static int lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }
  __device__ __forceinline__ static int quarter() {
    return lane() / 8;
  }
  // The lane that has the same columns and that quarter.
  __device__ __forceinline__ static int lane_of(int quarter) {
    return quarter * 8 + lane() % 8;
  }
  __device__ __forceinline__ static int first_token() {
    return quarter() * kQuarter;
  }
  __device__ __forceinline__ static int first_column() {
    return (static_cast<int>(threadIdx.x) / 32 * 8 + lane() % 8) * kCount;
  }
  __device__ __forceinline__ static Columns& at(float* sums, int token) {
    return *reinterpret_cast<Columns*>(sums + token * kStride + first_column());
  }
  // Token i of the group that begins with a token. Neighbouring quarters begin with different
  // ones, which are on other banks.
  __device__ __forceinline__ static int in_group(int i) {
    return (i + quarter() * 2) % kGroup;
  }
  __device__ __forceinline__ static Columns sum_of_group(float* sums, int first) {
    Columns tokens[kGroup];
#pragma unroll
    for (int i = 0; i < kGroup; ++i) tokens[i] = at(sums, first + in_group(i));
#pragma unroll
    for (int count = kGroup / 2; count > 0; count /= 2) {
#pragma unroll
      for (int i = 0; i < count; ++i) tokens[i] += tokens[i + count];
    }
    return tokens[0];
  }
  __device__ __forceinline__ static void fill_group(float* sums, int first, const Columns& value) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) at(sums, first + in_group(i)) = value;
  }
  // The same in a tile of bf16.
  __device__ __forceinline__ static void round_to(kernel_bf16* tile, int token,
                                                  const Columns& value) {
    kernel_bf16* to = tile + token * kStride + first_column();
    if constexpr (kCount == 1) {
      linnet::cuda::store(to, value.values[0]);
    } else {
      static_assert(kCount == 2);
      *reinterpret_cast<uint32_t*>(to) = pack(value.values[0], value.values[1]);
    }
  }
  __device__ __forceinline__ static void fill_group(kernel_bf16* tile, int first,
                                                    const Columns& value) {
#pragma unroll
    for (int i = 0; i < kGroup; ++i) round_to(tile, first + in_group(i), value);
  }

  // From and to an array of the sums of a head, [rank]; null: zeros, or not wanted.
  __device__ __forceinline__ static Columns load(const float* from, int rank) {
    Columns columns;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int column = first_column() + i;
      columns.values[i] = from != nullptr && column < rank ? from[column] : 0.0f;
    }
    return columns;
  }
  // All lanes of a column have its sums; those of `by_quarter` store them.
  __device__ __forceinline__ static void store(const Columns& columns, float* to, int rank,
                                               int by_quarter) {
    if (to == nullptr || quarter() != by_quarter) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (first_column() + i < rank) to[first_column() + i] = columns.values[i];
    }
  }
};

// The sums of codes over completed windows and over the open one, of a lane's columns.
template <int D, int warps = kTileThreads / 32>
struct RunningSums {
  using Part = ScanPart<D, warps>;
  using Columns = typename Part::Columns;

  Columns completed, partial;

  // Along the codes of a chunk, which become the tokens' reads. By all lanes of a warp; codes that
  // other warps stored must be there.
  __device__ __forceinline__ void scan(const Chunk& chunk, float* codes) {
    if (!chunk.is_even()) {
      RunningSums own{};
      const Crossed crossed = own.template walk<false>(chunk, codes);
      RunningSums before = pass(own, crossed);
      before.template walk<true>(chunk, codes);
      return;
    }
    const int first = Part::first_token();
    const Columns sums[2] = {Part::sum_of_group(codes, first),
                             Part::sum_of_group(codes, first + kGroup)};
    Columns reads[2] = {};
    int place = chunk.phase;
#pragma unroll 1  // registers
    for (int quarter = 0; quarter < kChunk / Part::kQuarter; ++quarter) {
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        if (quarter == Part::quarter()) reads[group] = completed;
        partial += sums[group].of_lane(Part::lane_of(quarter));
        place += kGroup;
        if (place != chunk.window) continue;
        complete();
        place = 0;
      }
    }
    Part::fill_group(codes, first, reads[0]);
    Part::fill_group(codes, first + kGroup, reads[1]);
  }

  // Whole: `completed` and `partial` begin with one number of the sums over the segment that
  // reaches into the chunk and the one that reaches out of it. Its column of codes becomes the sums
  // of their segments.
  __device__ __forceinline__ void sum_segments(const Chunk& chunk, float* column,
                                               int stride) const {
    for (int begin = 0, end; begin < chunk.length; begin = end) {
      end = chunk.segment_end(begin);
      float sum = 0;
      if (!chunk.begins_segment(begin)) {
        sum = completed.values[0];
      } else if (end == chunk.length) {
        sum = partial.values[0];
      } else {
#pragma unroll 8
        for (int t = begin; t < end; ++t) sum += column[t * stride];
      }
#pragma unroll 8
      for (int t = begin; t < end; ++t) column[t * stride] = sum;
    }
  }
  // All of a column, where rows have no segments.
  __device__ __forceinline__ void fill(float* column, int stride) const {
#pragma unroll 8
    for (int t = 0; t < kChunk; ++t) column[t * stride] = completed.values[0];
  }

 private:
  __device__ __forceinline__ void complete() {
    completed += partial;
    partial = {};
  }
  // From before a chunk to after it, of whose quarters each lane knows its own; the sums before
  // that.
  __device__ __forceinline__ RunningSums pass(const RunningSums& own, Crossed crossed) {
    RunningSums before{};
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      if (quarter == Part::quarter()) before = *this;
      const int lane = Part::lane_of(quarter);
      const auto its = static_cast<Crossed>(__shfl_sync(~0u, static_cast<int>(crossed), lane));
      const Columns its_completed = own.completed.of_lane(lane);
      const Columns its_partial = own.partial.of_lane(lane);
      if (its == Crossed::segment) completed = partial = {};
      if (its == Crossed::window) complete();
      completed += its_completed;
      partial += its_partial;
    }
    return before;
  }
  // Along the lane's tokens one by one.
  template <bool writes>
  __device__ __forceinline__ Crossed walk(const Chunk& chunk, float* codes) {
    const int begin = Part::first_token(), end = min(chunk.length, begin + Part::kQuarter);
    int place = begin - chunk.window_begin(begin);  // in its window
    Crossed crossed = Crossed::nothing;
#pragma unroll 4
    for (int t = begin; t < end; ++t) {
      Columns& at = Part::at(codes, t);
      if (chunk.begins_segment(t)) {
        completed = partial = {};
        place = 0;
        crossed = Crossed::segment;
      }
      const Columns before = completed;
      partial += at;
      if (++place == chunk.window) {
        complete();
        place = 0;
        if (crossed == Crossed::nothing) crossed = Crossed::window;
      }
      if (writes) at = chunk.inclusive ? completed : before;
    }
    return crossed;
  }
};

// Gradients of the sums of a lane's columns: of everything completed, and of the codes of the
// window at hand.
template <int D, int warps = kTileThreads / 32>
struct RunningGradients {
  using Part = ScanPart<D, warps>;
  using Columns = typename Part::Columns;

  Columns completed, window;
  bool later_begins;  // the token after the chunk begins a segment

  // Back along the gradients dm of a chunk's reads; dC goes to a tile of bf16. By all lanes of a
  // warp; dm that other warps stored must be there.
  __device__ __forceinline__ void scan(const Chunk& chunk, float* gradients, kernel_bf16* dcodes) {
    if (!chunk.is_even() || later_begins) {
      RunningGradients own{{}, {}, later_begins};
      const Crossed crossed = own.template walk<false>(chunk, gradients, dcodes);
      RunningGradients after = pass(own, crossed);
      after.template walk<true>(chunk, gradients, dcodes);
      later_begins = chunk.begins_segment(0);
      return;
    }
    const int first = Part::first_token();
    const Columns sums[2] = {Part::sum_of_group(gradients, first),
                             Part::sum_of_group(gradients, first + kGroup)};
    Columns of_codes[2] = {};
    int place = (chunk.phase + kChunk - 1) % chunk.window + 1;  // of the last token, from 1
#pragma unroll 1                                                // registers
    for (int quarter = kChunk / Part::kQuarter - 1; quarter >= 0; --quarter) {
#pragma unroll
      for (int group = 1; group >= 0; --group) {
        if (place == chunk.window) window = completed;
        if (quarter == Part::quarter()) of_codes[group] = window;
        completed += sums[group].of_lane(Part::lane_of(quarter));
        place = place == kGroup ? chunk.window : place - kGroup;
      }
    }
    Part::fill_group(dcodes, first, of_codes[0]);
    Part::fill_group(dcodes, first + kGroup, of_codes[1]);
  }

  // Whole: a column of dm gives dC of the segments that lie in the chunk, and 0 for others, whose
  // sums are added to those of the segment that reaches into it and of the one that reaches out.
  __device__ __forceinline__ void sum_segments(const Chunk& chunk, const float* column,
                                               kernel_bf16* dcodes, int stride) {
    for (int first = 0, end; first < chunk.length; first = end) {
      end = chunk.segment_end(first);
      float sum = 0;
#pragma unroll 8
      for (int t = first; t < end; ++t) sum += column[t * stride];
      if (!chunk.begins_segment(first)) {
        completed.values[0] += sum;
        sum = 0;
      } else if (end == chunk.length) {
        window.values[0] += sum;
        sum = 0;
      }
#pragma unroll 8
      for (int t = first; t < end; ++t) linnet::cuda::store(dcodes + t * stride, sum);
    }
    for (int t = chunk.length; t < kChunk; ++t) linnet::cuda::store(dcodes + t * stride, 0.0f);
  }

 private:
  // From after a chunk to before it; the gradients after the lane's quarter.
  __device__ __forceinline__ RunningGradients pass(const RunningGradients& own, Crossed crossed) {
    RunningGradients after{{}, {}, later_begins};
#pragma unroll
    for (int quarter = 3; quarter >= 0; --quarter) {
      if (quarter == Part::quarter()) after = *this;
      const int lane = Part::lane_of(quarter);
      const auto its = static_cast<Crossed>(__shfl_sync(~0u, static_cast<int>(crossed), lane));
      const Columns its_completed = own.completed.of_lane(lane);
      const Columns its_window = own.window.of_lane(lane);
      if (its == Crossed::segment) completed = {};
      if (its != Crossed::nothing) window = completed + its_window;
      completed += its_completed;
    }
    return after;
  }
  // Back along the lane's tokens one by one.
  template <bool writes>
  __device__ __forceinline__ Crossed walk(const Chunk& chunk, float* gradients,
                                          kernel_bf16* dcodes) {
    const int begin = Part::first_token(), end = min(chunk.length, begin + Part::kQuarter);
    Crossed crossed = Crossed::nothing;
    for (int t = max(begin, end); writes && t < begin + Part::kQuarter; ++t) {
      Part::round_to(dcodes, t, {});
    }
    bool last = end == chunk.length ? later_begins : chunk.begins_segment(end);  // of its segment
    int place = end - chunk.window_begin(end - 1);  // in its window, from 1
#pragma unroll 4
    for (int t = end - 1; t >= begin; --t) {
      const Columns reads = Part::at(gradients, t);
      if (last) {
        completed = window = {};
        crossed = Crossed::segment;
      }
      if (place == chunk.window) {
        window = completed;
        if (chunk.inclusive) window += reads;
        if (crossed == Crossed::nothing) crossed = Crossed::window;
      }
      completed += reads;
      if (writes) Part::round_to(dcodes, t, window);
      last = chunk.begins_segment(t);
      place = place == 1 ? chunk.window : place - 1;
      if (last && t > begin) place = t - chunk.window_begin(t - 1);
    }
    return crossed;
  }
};

}  // namespace linnet::cuda::orthogonal_memory_fast
