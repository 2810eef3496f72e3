// The scan of linear attention's state along time: forward for y and the gradient of queries,
// backward in time for the gradients of keys and values.
#include <algorithm>

#include "attention/primitives/linear_attention/cuda/kernels.h"

namespace linnet::cuda::linear_attention_detail {
namespace {

constexpr int kParts = 8;              // threads that share a column of the state
constexpr int kBatch = 8;              // updates that are loaded together
constexpr int kWidestTile = 40;        // columns of a block
constexpr int64_t kReadTokens = 256;   // of a block at least, where the state stays as it is
constexpr int64_t kMaxBlocks = 65535;  // along a grid's y

// What a launch adds to a scan.
struct ScanPart {
  int64_t block_tokens;
  // Rows of the state from first_row on; what those before read is in `out`.
  int first_row, rows;
  int tile, tiles;  // columns of a block, and how many blocks have them
  int factors;      // of an update: 1, or one for each feature among the block's rows or columns
};

struct Layout {
  __host__ __device__ Layout(SharedArena& arena, int rows, int tile, int factors)
      : state(arena.take<float>(static_cast<size_t>(rows) * tile)),
        left(arena.take<float>(static_cast<size_t>(kBatch) * rows)),
        probe(arena.take<float>(static_cast<size_t>(kBatch) * rows)),
        right(arena.take<float>(static_cast<size_t>(kBatch) * tile)),
        partial(arena.take<float>(static_cast<size_t>(kBatch) * kParts * tile)),
        factor(arena.take<float>(static_cast<size_t>(kBatch) * factors)) {}
  float* state;    // [rows][tile]
  float* left;     // [kBatch][rows]
  float* probe;    // [kBatch][rows]
  float* right;    // [kBatch][tile]
  float* partial;  // [kBatch][kParts][tile]
  float* factor;   // [kBatch][factors]: of the state before; 0 where a segment begins
};

// Where element (row, column) of state `number` is: in its memory or, in the last column, its
// normalizer.
template <typename E>
__device__ E* state_element(const StateScan& a, int first_row, E* memory, E* mass, int64_t number,
                            int row, int column) {
  row += first_row;
  const int feature = a.transposed ? column : row, value = a.transposed ? row : column;
  const int64_t place = number * a.features + feature;
  if (value < a.values) return memory == nullptr ? nullptr : memory + place * a.values + value;
  return mass == nullptr ? nullptr : mass + place;
}

// The span of a block and its place in time. An update is one head's at one token.
struct Scan {
  int64_t row, begin, end, updates;
  int first_head, group;

  __device__ Scan(const StateScan& a, int64_t block_tokens, int64_t number, int head)
      : row(number), begin(0), end(a.time) {
    if (a.spans != nullptr) {
      row = a.spans[3 * number];
      begin = a.spans[3 * number + 1];
      end = a.spans[3 * number + 2];
    }
    begin += static_cast<int64_t>(blockIdx.y) * block_tokens;
    if (end > begin + block_tokens) end = begin + block_tokens;
    first_head = head * a.update_heads / a.heads;
    group = a.update_heads > a.heads ? a.update_heads / a.heads : 1;
    updates = end > begin ? (end - begin) * group : 0;
  }
  __device__ int64_t token(const StateScan& a, int64_t update) const {
    return a.reverse ? end - 1 - update / group : begin + update / group;
  }
  __device__ bool first_of_token(int64_t update) const { return update % group == 0; }
  __device__ bool last_of_token(int64_t update) const { return update % group == group - 1; }
};

// exp of a token's log-decay; of this feature, if each has its own.
__device__ float decay_at(const StateScan& a, int64_t token, int head, int feature) {
  if (a.decay_mask != nullptr && a.decay_mask[token] == 0) return 1;
  const int64_t place = token * a.state_heads + head * a.state_heads / a.heads;
  return expf(a.log_decay[a.channel_decay ? place * a.features + feature : place]);
}

__device__ bool begins_segment(const StateScan& a, const Scan& scan, int64_t update) {
  if (a.segments == nullptr || !scan.first_of_token(update)) return false;
  const int64_t t = scan.token(a, update), before = a.reverse ? t + 1 : t - 1;
  if (before < scan.begin || before >= scan.end) return false;
  return a.segments[scan.row * a.time + t] != a.segments[scan.row * a.time + before];
}

// The factor of the state at an update.
__device__ float factor_of(const StateScan& a, const Scan& scan, int64_t update, int head,
                           int feature) {
  if (begins_segment(a, scan, update)) return 0;
  if (a.log_decay == nullptr || !scan.first_of_token(update)) return 1;
  const int64_t t = scan.token(a, update) + (a.reverse ? 1 : 0);
  return t < scan.end ? decay_at(a, scan.row * a.time + t, head, feature) : 1.0f;
}

__device__ void load_batch(const StateScan& a, const ScanPart& part, const Scan& scan, int64_t done,
                           int count, int head, int first_column, const Layout& shared) {
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  const int threads = static_cast<int>(blockDim.x * blockDim.y);
  for (int i = thread; i < count * part.rows; i += threads) {
    const int64_t update = done + i / part.rows, token = scan.row * a.time + scan.token(a, update);
    const int r = i % part.rows;
    if (a.left != nullptr) {
      const int64_t place = token * a.update_heads + scan.first_head + update % scan.group;
      shared.left[i] = a.left[place * a.rows + part.first_row + r];
    }
    if (a.probe != nullptr && scan.last_of_token(update)) {
      shared.probe[i] = a.probe[(token * a.heads + head) * a.rows + part.first_row + r];
    }
  }
  for (int i = thread; a.left != nullptr && i < count * part.tile; i += threads) {
    const int64_t update = done + i / part.tile, token = scan.row * a.time + scan.token(a, update);
    const int64_t place = token * a.update_heads + scan.first_head + update % scan.group;
    const int column = first_column + i % part.tile;
    shared.right[i] = column < a.columns ? a.right[place * a.right_width + column] : 0.0f;
  }
  for (int i = thread; i < count * part.factors; i += threads) {
    const int place = i % part.factors + (a.transposed ? first_column : part.first_row);
    const int feature = min(place, a.features - 1);  // columns past the last one are not stored
    shared.factor[i] = factor_of(a, scan, done + i / part.factors, head, feature);
  }
}

// A block has one tile of columns of one head's state. A thread has every kParts-th row of one
// column, which no other thread touches.
__global__ void linear_attention_scan(StateScan a, ScanPart part) {
  SharedArena arena;
  const Layout shared(arena, part.rows, part.tile, part.factors);
  const int first_column = static_cast<int>(blockIdx.x % part.tiles) * part.tile;
  const int head = static_cast<int>(blockIdx.x / part.tiles % a.heads);
  const int64_t number = blockIdx.x / part.tiles / a.heads;
  const int first = static_cast<int>(threadIdx.y), c = static_cast<int>(threadIdx.x);
  const int column = first_column + c;
  const int64_t state_number = number * a.state_heads + head * a.state_heads / a.heads;
  const Scan scan(a, part.block_tokens, number, head);
  float* state = shared.state + c;
  const bool of_rows = a.channel_decay && !a.transposed;
  const bool of_columns = a.channel_decay && a.transposed;

  for (int r = first; r < part.rows; r += kParts) {
    const float* from = column < a.columns ? state_element(a, part.first_row, a.in.memory,
                                                           a.in.mass, state_number, r, column)
                                           : nullptr;
    state[r * part.tile] = from == nullptr ? 0.0f : *from;
  }
  for (int64_t done = 0; done < scan.updates; done += kBatch) {
    const int count = static_cast<int>(min(static_cast<int64_t>(kBatch), scan.updates - done));
    load_batch(a, part, scan, done, count, head, first_column, shared);
    __syncthreads();
    for (int j = 0; j < count; ++j) {
      const float* left = shared.left + j * part.rows;
      const float* probe = shared.probe + j * part.rows;
      const bool read = a.probe != nullptr && scan.last_of_token(done + j);
      if (a.left != nullptr) {
        const float x = shared.right[j * part.tile + c];
        const float* factors = shared.factor + j * part.factors;
        const float of_all = factors[of_columns ? c : 0];
        for (int r = first; r < part.rows; r += kParts) {
          const float factor = of_rows ? factors[r] : of_all;
          const float before = factor == 0 ? 0.0f : factor * state[r * part.tile];
          state[r * part.tile] = before + left[r] * x;
        }
      }
      if (!read) continue;
      float sum = 0;
      for (int r = first; r < part.rows; r += kParts) sum += probe[r] * state[r * part.tile];
      shared.partial[(j * kParts + first) * part.tile + c] = sum;
    }
    __syncthreads();
    for (int j = first; a.probe != nullptr && j < count; j += kParts) {
      if (column >= a.columns || !scan.last_of_token(done + j)) continue;
      float sum = 0;
      for (int p = 0; p < kParts; ++p) sum += shared.partial[(j * kParts + p) * part.tile + c];
      const int64_t token = scan.row * a.time + scan.token(a, done + j);
      float* to = a.out + (token * a.heads + head) * a.columns + column;
      *to = part.first_row == 0 ? sum : *to + sum;
    }
  }
  // Heads that share a state have the same one; the first stores it.
  if (column >= a.columns || head % (a.heads / a.state_heads) != 0) return;
  const bool decays = a.reverse && a.log_decay != nullptr && scan.end > scan.begin;
  for (int r = first; r < part.rows; r += kParts) {
    float* to = state_element(a, part.first_row, a.out_state.memory, a.out_state.mass, state_number,
                              r, column);
    if (to == nullptr) continue;
    const int feature = a.transposed ? column : part.first_row + r;
    const float last = decays ? decay_at(a, scan.row * a.time + scan.begin, head, feature) : 1.0f;
    *to = last * state[r * part.tile];
  }
}

}  // namespace

void run(const StateScan& scan) {
  const bool fixed = scan.update_heads == 0;
  ScanPart part{};
  part.block_tokens = fixed ? std::max(kReadTokens, (scan.time + kMaxBlocks - 1) / kMaxBlocks)
                            : std::max<int64_t>(scan.time, 1);
  part.tiles = (scan.columns + kWidestTile - 1) / kWidestTile;
  part.tile = (scan.columns + part.tiles - 1) / part.tiles;
  const int64_t cuts = fixed ? (scan.time + part.block_tokens - 1) / part.block_tokens : 1;
  constexpr int kMaxRows = static_cast<int>(kWidestState) + 1;
  for (; part.first_row < scan.rows; part.first_row += kMaxRows) {
    part.rows = std::min(kMaxRows, scan.rows - part.first_row);
    part.factors = !scan.channel_decay ? 1 : scan.transposed ? part.tile : part.rows;
    launch({"linear_attention_scan",
            dim3(blocks_for(scan.states * scan.heads * part.tiles, 1), static_cast<unsigned>(cuts)),
            dim3(static_cast<unsigned>(part.tile), kParts),
            shared_bytes<Layout>(part.rows, part.tile, part.factors)},
           linear_attention_scan, scan, part);
  }
}

}  // namespace linnet::cuda::linear_attention_detail
