// Table lookups and their gradient.
#include "autograd/cuda/embedding.h"

#include <algorithm>

#include "core/cuda/elementwise.h"
#include "core/cuda/stored_values.h"
#include "core/cuda/vectors.h"

namespace linnet::cuda {
namespace {

struct Lookup {
  const int32_t* ids;
  const void* table;
  void* y;
  int64_t rows, channels;
  float factor;

  template <typename T, int count>
  __device__ __forceinline__ void at(int64_t i) const {
    const int64_t place = i / channels, channel = i - place * channels;
    const int64_t row = ids[place];
    float values[count];
    if (row >= 0 && row < rows) {
      load_vector(elements<T>(table, row * channels + channel), values);
#pragma unroll
      for (int j = 0; j < count; ++j) values[j] *= factor;
    } else {
#pragma unroll
      for (int j = 0; j < count; ++j) values[j] = NAN;
    }
    store_vector(elements<T>(y, i), values);
  }
};

constexpr int kTableRows = 16;  // per block
constexpr int kThreads = 128;   // per block, at most

// [kTableRows, channels of the block]
struct RowSums {
  __host__ __device__ RowSums(SharedArena& arena, int channels)
      : values(arena.take<float>(static_cast<size_t>(kTableRows * channels))) {}
  float* values;
};

struct Scatter {
  const int32_t* ids;
  const void* dy;
  int64_t tokens;
  int64_t split;  // tokens of one blockIdx.z
  int64_t table_rows;
  int64_t channels;
  float factor;
  bool accumulate;
  StoredResults to;
};

// A thread's channels of the tokens, among the 32 from `token` on, whose rows are the block's:
// lane i has the row of the i-th, counted from the block's first. Several tokens' gradients are
// read before the first is added, for a frequent id's come one after the other. Returns a bit for
// each row that a token has.
template <typename T, int count>
__device__ __forceinline__ unsigned add_tokens(const Scatter& s, int64_t token, uint32_t row,
                                               int64_t channel, float* sums, int width) {
  constexpr int kTogether = 4;
  unsigned touched = 0;
  for (unsigned left = __ballot_sync(~0u, row < kTableRows); left != 0;) {
    Packed<T, count> gradients[kTogether];
    int rows[kTogether];
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      const int source = left == 0 ? 0 : __popc((left & (~left + 1)) - 1);  // the lowest lane left
      rows[n] = left == 0 ? -1 : __shfl_sync(~0u, static_cast<int>(row), source);
      if (left != 0 && channel < s.channels) {
        gradients[n].read(elements<T>(s.dy, (token + source) * s.channels + channel));
      }
      left &= left - 1;
    }
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      if (rows[n] < 0) break;
      touched |= 1u << rows[n];
      float* own = sums + rows[n] * width;
      float values[count], totals[count];
      gradients[n].unpack(values);
      load_vector(own, totals);
#pragma unroll
      for (int i = 0; i < count; ++i) totals[i] += s.factor * values[i];
      store_vector(own, totals);
    }
  }
  return touched;
}

// Adds a block's sums to the table, or replaces what it has; a warp's lanes take neighbours of its
// channels. What no token has (bits of `touched`) is left alone where nothing is to be replaced.
template <int count>
__device__ __forceinline__ void write_rows(const Scatter& s, const float* block_sums,
                                           unsigned touched) {
  const int width = static_cast<int>(blockDim.x) * count;
  const int of_lane = static_cast<int>(threadIdx.x / 32 * 32 * count + threadIdx.x % 32);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kTableRows;
  const int64_t channel = static_cast<int64_t>(blockIdx.y) * width + of_lane;
  const int64_t table = static_cast<int64_t>(blockIdx.z) * s.table_rows;
  for (int row = 0; row < kTableRows && first_row + row < s.table_rows; ++row) {
    if (s.accumulate && (touched >> row & 1) == 0) continue;
    const int64_t at = (table + first_row + row) * s.channels + channel;
    float values[count] = {};
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (s.accumulate && channel + 32 * i < s.channels) values[i] = s.to.at(at + 32 * i);
    }
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (channel + 32 * i >= s.channels) break;
      s.to.put(at + 32 * i, values[i] + block_sums[row * width + of_lane + 32 * i]);
    }
  }
}

// A block owns some rows and channels of the table and goes through its tokens in order, so that
// every sum has a fixed order. `to` has one table for each blockIdx.z. A warp reads the ids of
// 4 x 32 tokens at a time; no thread ever touches the channels of another.
template <typename T, int count>
__device__ __forceinline__ void sum_tokens(const Scatter& s, float* block_sums) {
  constexpr int kReads = 4;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int width = static_cast<int>(blockDim.x) * count;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kTableRows;
  const int64_t channel = static_cast<int64_t>(blockIdx.y) * width + threadIdx.x * count;
  float* sums = block_sums + threadIdx.x * count;
  float values[count] = {};
  for (int row = 0; row < kTableRows; ++row) store_vector(sums + row * width, values);
  const int64_t begin = static_cast<int64_t>(blockIdx.z) * s.split;
  const int64_t end = min(begin + s.split, s.tokens);
  unsigned touched = 0;
  for (int64_t token = begin; token < end; token += 32 * kReads) {
    uint32_t rows[kReads];
    bool some = false;
#pragma unroll
    for (int n = 0; n < kReads; ++n) {
      const int64_t at = token + 32 * n + lane;
      rows[n] = at < end ? static_cast<uint32_t>(s.ids[at]) - static_cast<uint32_t>(first_row)
                         : kTableRows;
      some |= rows[n] < kTableRows;
    }
    if (__ballot_sync(~0u, some) == 0) continue;  // as mostly in wide tables
#pragma unroll
    for (int n = 0; n < kReads; ++n) {
      touched |= add_tokens<T, count>(s, token + 32 * n, rows[n], channel, sums, width);
    }
  }
  __syncwarp();
  write_rows<count>(s, block_sums, touched);
}

__global__ void embedding_gradient(const __grid_constant__ Scatter s, bool narrow,
                                   bool in_vectors) {
  SharedArena arena;
  const int together = in_vectors ? (narrow ? kVector<kernel_bf16> : kVector<float>) : 1;
  const RowSums sums(arena, static_cast<int>(blockDim.x) * together);
  with_elements(narrow, in_vectors, [&](auto zero, auto vectors) {
    using T = decltype(zero);
    sum_tokens<T, vectors() ? kVector<T> : 1>(s, sums.values);
  });
}

// How the channels of dy are shared: `together` by a thread.
struct Sharing {
  int together, threads;

  int64_t blocks(int64_t channels) const {
    return (channels + threads * together - 1) / (threads * together);
  }
};
Sharing sharing_of(const Scatter& s, DType dtype) {
  const int vector = static_cast<int>(16 / size_of(dtype));
  const int together = s.channels % vector == 0 && are_aligned(s.dy) ? vector : 1;
  const int64_t warps = (s.channels + 32 * together - 1) / (32 * together);
  return {together, static_cast<int>(std::min<int64_t>(32 * warps, kThreads))};
}

// Blocks that fill a GPU; a split of the tokens must be worth its partial table.
constexpr int64_t kEnoughBlocks = 512;
constexpr int64_t kMinimumSplit = 512;

void scatter(const Scatter& s, DType dtype, const Sharing& sharing, int64_t splits) {
  const dim3 grid(blocks_for(s.table_rows, kTableRows),
                  static_cast<unsigned>(sharing.blocks(s.channels)), static_cast<unsigned>(splits));
  launch({"embedding_gradient", grid, static_cast<unsigned>(sharing.threads),
          shared_bytes<RowSums>(sharing.threads * sharing.together)},
         embedding_gradient, s, dtype == DType::bf16, sharing.together > 1);
}

}  // namespace

void embedding(const Tensor& ids, const Tensor& table, double factor, const Tensor& y) {
  const DType dtype = y.dtype();
  const Lookup f{pointer<int32_t>(ids), array_of(dtype, table), array_of(dtype, y),
                 table.size(0),         table.size(1),          static_cast<float>(factor)};
  for_each_vector("embedding", dtype, y.elements(),
                  f.channels % 8 == 0 && are_aligned(f.table, f.y), f);
}

void embedding_backward(const Tensor& ids, const Tensor& dy, double factor, const Tensor& dtable,
                        bool accumulate) {
  const int64_t rows = dtable.size(0), channels = dtable.size(1), tokens = ids.elements();
  if (dtable.elements() == 0) return;
  Scatter s{pointer<int32_t>(ids),
            array_of(dy.dtype(), dy),
            tokens,
            tokens,
            rows,
            channels,
            static_cast<float>(factor),
            accumulate,
            stored_results(dtable)};
  const Sharing sharing = sharing_of(s, dy.dtype());
  const int64_t blocks = (rows + kTableRows - 1) / kTableRows * sharing.blocks(channels);
  const int64_t splits =
      std::clamp<int64_t>(std::min(kEnoughBlocks / blocks, tokens / kMinimumSplit), 1, 256);
  if (splits == 1) return scatter(s, dy.dtype(), sharing, 1);
  const Tensor partial = Tensor::empty({splits, rows * channels}, DType::f32, dy.device());
  s.split = (tokens + splits - 1) / splits;
  s.accumulate = false;
  s.to = stored_results(partial);
  scatter(s, dy.dtype(), sharing, splits);
  sum_rows(partial, dtable.reshape({rows * channels}), accumulate);
}

}  // namespace linnet::cuda
