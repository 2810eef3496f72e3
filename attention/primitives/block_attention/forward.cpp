// Block attention, forward: streaming softmax, or plain sums, over tiles of keys.
#include <cmath>

#include "attention/primitives/block_attention/running_softmax.h"
#include "attention/primitives/block_attention/tiles.h"
#include "attention/primitives/common/tile_gemm.h"
#include "core/error.h"
#include "core/threads.h"

namespace linnet {
namespace {

using namespace block_attention_detail;

template <typename T>
struct ForwardTile {
  QueryTile<T> queries;
  KeyTile<T> keys;
  RunningSoftmax<T> softmax;
  ReversedBias<T> bias;
  T* logits = nullptr;

  explicit ForwardTile(const BlockAttentionInputs<T>& in) {
    static thread_local Workspace<T> workspace;  // kept: a call has many tiles
    const int64_t v_stride = simd::round_up<T>(in.v.K);
    const int64_t bias_elements = in.bias ? ReversedBias<T>::elements(in.bias_count) : 0;
    workspace.rewind();
    workspace.reserve(KeyTile<T>::elements(in.q.K, in.v.K) + QueryTile<T>::elements(in.q.K) +
                      kQueries * (v_stride + kKeys) + bias_elements + 128);
    keys.allocate(workspace, in.q.K, in.v.K);
    queries.allocate(workspace, in.q.K);
    softmax.weighted = workspace.take(kQueries * v_stride);
    logits = workspace.take(kKeys * kQueries);
    if (in.bias) bias.values = workspace.take(bias_elements);
  }
};

// Applies dropout to a tile of weights [keys, kQueries].
template <typename T>
void drop(const Segment& segment, const QueryTile<T>& queries, const KeyTile<T>& keys,
          DropoutMask& mask, T* weights) {
  alignas(64) T factors[kQueries];
  for (int64_t j = 0; j < keys.count; ++j) {
    mask.factors(segment.query_time + queries.first, queries.lanes,
                 segment.key_time + keys.index[j], factors);
    for (int64_t lane = 0; lane < queries.lanes; ++lane) {
      weights[j * kQueries + lane] *= factors[lane];
    }
  }
}

// y and log_sum_exp of one tile of queries.
template <typename T>
void forward_tile(const BlockAttentionInputs<T>& in, const BlockAttentionOptions& options,
                  const Segment& segment, int64_t head, int64_t first, int64_t count,
                  ForwardTile<T>& tile, const SequenceView<T>& y, T* log_sum_exp) {
  const int64_t K = in.q.K, V = in.v.K, v_stride = tile.keys.v_stride;
  const int64_t group = head / (in.q.H / in.k.H);
  tile.queries.set(in, options, segment, head, first, count);
  tile.softmax.reset();
  const int64_t example = in.example_ids ? in.example_ids[segment.row] : segment.row;
  DropoutMask mask(options, example, head);
  const T scale = static_cast<T>(options.scale);
  const bool normalised = options.weights == BlockWeights::softmax;
  bool started = false;
  for (int64_t u = tile.queries.seen.begin; u < tile.queries.seen.end;) {
    u = tile.keys.gather(in, segment, group, u, tile.queries.seen.end, tile.queries.next_keys());
    if (tile.keys.count == 0) break;
    tile_gemm<T>(tile.keys.count, tile.queries.lanes, K, scale, {tile.keys.k, tile.keys.k_stride},
                 {tile.queries.transposed, kQueries}, Write::overwrite, tile.logits, kQueries);
    finish_logits(tile.queries, tile.keys, segment, tile.bias, tile.logits);
    bool grew = false;
    if (normalised) {
      grew = tile.softmax.absorb(tile.keys.count, tile.queries.lanes, tile.logits);
    } else {
      for (int64_t j = 0; j < tile.keys.count; ++j) {
        weigh_row<T>(options, tile.queries.lanes, tile.logits + j * kQueries, nullptr);
      }
    }
    if (options.dropout > 0) drop(segment, tile.queries, tile.keys, mask, tile.logits);
    if (started && grew) {
      for (int64_t i = 0; i < count; ++i) {
        T* row = tile.softmax.weighted + i * v_stride;
        for (int64_t c = 0; c < v_stride; ++c) row[c] *= tile.softmax.rescale[i];
      }
    }
    tile_gemm<T>(count, v_stride, tile.keys.count, T{1}, {tile.logits, kQueries, true},
                 {tile.keys.v, v_stride}, started ? Write::accumulate : Write::overwrite,
                 tile.softmax.weighted, v_stride);
    started = true;
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t t = segment.query_begin + first + i;
    T* out = y.at(segment.row, t, head);
    const T sum = normalised ? tile.softmax.sum[i] : T{1};
    const bool empty = !started || !tile.queries.valid[i] || sum == 0;
    log_sum_exp[(segment.row * in.q.T + t) * in.q.H + head] =
        !normalised ? T{0}
        : empty     ? std::numeric_limits<T>::infinity()
                    : tile.softmax.maximum[i] + std::log(sum);
    if (empty) {
      std::fill_n(out, V, T{0});
      continue;
    }
    const T* weighted = tile.softmax.weighted + i * v_stride;
    const T factor = T{1} / sum;
    for (int64_t c = 0; c < V; ++c) out[c] = weighted[c] * factor;
  }
}

}  // namespace

template <typename T>
void block_attention_forward(const BlockAttentionInputs<T>& in,
                             const BlockAttentionOptions& options, SequenceView<T> y,
                             T* log_sum_exp) {
  check_block_attention(in, options);
  require(y.B == in.q.B && y.T == in.q.T && y.H == in.q.H && y.K == in.v.K,
          "block attention: y must be [", in.q.B, ",", in.q.T, ",", in.q.H, ",", in.v.K, "]");
  struct Item {
    const Segment* segment;
    int64_t head, first;
  };
  const std::vector<Segment> segments = make_segments(in);
  const int64_t step = queries_per_tile(options), H = in.q.H;
  // All heads of some tokens after each other, which lie beside each other in memory, unless tiles
  // of one head have many keys in common.
  const bool by_token = is_narrow(options, 4 * kKeys);
  std::vector<Item> items;
  for (const Segment& segment : segments) {
    const int64_t tiles = (segment.queries + step - 1) / step;
    for (int64_t i = 0; i < tiles * H; ++i) {
      const int64_t head = by_token ? i % H : i / tiles, tile = by_token ? i / H : i % tiles;
      items.push_back({&segment, head, tile * step});
    }
  }
  const int64_t count = static_cast<int64_t>(items.size());
  // A thread takes neighbouring tiles where there are many small ones.
  const int64_t chunk = std::clamp<int64_t>(count / (8 * thread_count()), 1,
                                            options.pattern == BlockPattern::full ? 1 : 8);
  parallel_tasks(count, chunk, [&] {
    return [&, tile = ForwardTile<T>(in), bias_head = int64_t{-1}](int64_t i) mutable {
      const Item& item = items[i];
      if (item.head != bias_head) tile.bias.fill(in, bias_head = item.head);
      forward_tile(in, options, *item.segment, item.head, item.first,
                   std::min(step, item.segment->queries - item.first), tile, y, log_sum_exp);
    };
  });
}

template void block_attention_forward<float>(const BlockAttentionInputs<float>&,
                                             const BlockAttentionOptions&, SequenceView<float>,
                                             float*);
template void block_attention_forward<double>(const BlockAttentionInputs<double>&,
                                              const BlockAttentionOptions&, SequenceView<double>,
                                              double*);

}  // namespace linnet
