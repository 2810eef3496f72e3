// Table lookups and their gradient.
#include "autograd/cuda/embedding.h"

#include <algorithm>

#include "core/cuda/elementwise.h"
#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

constexpr int kTableRows = 16;  // per block
constexpr int kChannels = 128;  // per block, one per thread

struct RowSums {
  __host__ __device__ explicit RowSums(SharedArena& arena)
      : rows(arena.take<float[kChannels]>(kTableRows)) {}
  float (*rows)[kChannels];
};

struct Scatter {
  const int32_t* ids;
  int64_t tokens;
  int64_t split;  // tokens of one blockIdx.z
  int64_t table_rows;
  int64_t channels;
  float factor;
  bool accumulate;
};

// A block owns some rows and channels of the table and goes through its tokens in order, so that
// every sum has a fixed order. `to` has one table for each blockIdx.z. A warp reads 32 ids at a
// time; no thread ever touches the column of another.
__global__ void embedding_gradient(Scatter s, StoredValues dy, StoredResults to) {
  SharedArena arena;
  const RowSums sums(arena);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kTableRows;
  const int64_t channel = static_cast<int64_t>(blockIdx.y) * kChannels + threadIdx.x;
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int row = 0; row < kTableRows; ++row) sums.rows[row][threadIdx.x] = 0;
  const int64_t begin = static_cast<int64_t>(blockIdx.z) * s.split;
  const int64_t end = begin + s.split < s.tokens ? begin + s.split : s.tokens;
  for (int64_t token = begin; token < end; token += 32) {
    const int64_t row = token + lane < end ? s.ids[token + lane] - first_row : -1;
    const bool mine = row >= 0 && row < kTableRows;
    for (unsigned left = __ballot_sync(~0u, mine); left != 0; left &= left - 1) {
      const int source = __popc((left & (~left + 1)) - 1);  // the lowest lane that is left
      const int own_row = __shfl_sync(~0u, static_cast<int>(row), source);
      if (channel < s.channels) {
        sums.rows[own_row][threadIdx.x] +=
            s.factor * dy.at((token + source) * s.channels + channel);
      }
    }
  }
  if (channel >= s.channels) return;
  const int64_t table = static_cast<int64_t>(blockIdx.z) * s.table_rows;
  for (int row = 0; row < kTableRows && first_row + row < s.table_rows; ++row) {
    const int64_t at = (table + first_row + row) * s.channels + channel;
    to.put(at, (s.accumulate ? to.at(at) : 0.0f) + sums.rows[row][threadIdx.x]);
  }
}

// Blocks that fill a GPU; a split of the tokens must be worth its partial table.
constexpr int64_t kEnoughBlocks = 1024;
constexpr int64_t kMinimumSplit = 512;

void scatter(const Tensor& dy, const Scatter& s, int64_t splits, const Tensor& to) {
  const dim3 grid(blocks_for(s.table_rows, kTableRows), blocks_for(s.channels, kChannels),
                  static_cast<unsigned>(splits));
  launch({"embedding_gradient", grid, kChannels, shared_bytes<RowSums>()}, embedding_gradient, s,
         stored_values(dy), stored_results(to));
}

}  // namespace

void embedding(const Tensor& ids, const Tensor& table, double factor, const Tensor& y) {
  const int32_t* id = pointer<int32_t>(ids);
  const StoredValues from = stored_values(table);
  const StoredResults to = stored_results(y);
  const int64_t rows = table.size(0), channels = table.size(1);
  const auto f = static_cast<float>(factor);
  for_each("embedding", y.elements(), [=] __device__(int64_t i) {
    const int64_t row = id[i / channels];
    const bool inside = row >= 0 && row < rows;
    to.put(i, inside ? f * from.at(row * channels + i % channels) : NAN);
  });
}

void embedding_backward(const Tensor& ids, const Tensor& dy, double factor, const Tensor& dtable,
                        bool accumulate) {
  const int64_t rows = dtable.size(0), channels = dtable.size(1), tokens = ids.elements();
  if (dtable.elements() == 0) return;
  const int64_t blocks =
      ((rows + kTableRows - 1) / kTableRows) * ((channels + kChannels - 1) / kChannels);
  const int64_t splits =
      std::clamp<int64_t>(std::min(kEnoughBlocks / blocks, tokens / kMinimumSplit), 1, 256);
  Scatter s{pointer<int32_t>(ids),      tokens,    (tokens + splits - 1) / splits, rows, channels,
            static_cast<float>(factor), accumulate};
  if (splits == 1) return scatter(dy, s, 1, dtable);
  s.accumulate = false;
  const Tensor partial = Tensor::empty({splits, rows * channels}, DType::f32, dy.device());
  scatter(dy, s, splits, partial);
  sum_rows(partial, dtable.reshape({rows * channels}), accumulate);
}

}  // namespace linnet::cuda
