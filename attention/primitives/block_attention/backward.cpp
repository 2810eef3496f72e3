// Block attention, backward: weights are recomputed tile by tile from the saved log-sum-exp.
// Queries of a (sequence, key head) are split into runs; a run adds to key gradients of its own,
// and runs are summed in order, so that no two threads ever add to the same number.
#include <cmath>

#include "attention/primitives/block_attention/tiles.h"
#include "attention/primitives/common/tile_gemm.h"
#include "core/threads.h"

namespace linnet {
namespace {

using namespace block_attention_detail;

// Consecutive query tiles of one (segment, key head), and where their key gradients are summed.
template <typename T>
struct Run {
  const Segment* segment;
  int64_t group, first, end;
  // Keys that the run's queries see.
  KeyRange keys;
  // Sums of its own [keys.end - keys.begin, K + V]; null: it is the only one and writes the
  // results.
  T* sums = nullptr;
  // [heads of the group, bias_count]
  T* bias_sums = nullptr;
};

template <typename T>
struct BackwardTile {
  QueryTile<T> queries;
  KeyTile<T> keys;
  ReversedBias<T> bias, dbias;
  T* dy = nullptr;             // [kQueries, v_stride]
  T* dy_transposed = nullptr;  // [v_stride, kQueries]
  T* dq = nullptr;             // [kQueries, k_stride]
  T* weights = nullptr;        // [kKeys, kQueries]
  T* dweights = nullptr;       // [kKeys, kQueries]
  T* dk = nullptr;             // [kKeys, k_stride]
  T* dv = nullptr;             // [kKeys, v_stride]
  alignas(64) T log_sum_exp[kQueries];
  alignas(64) T y_dot_dy[kQueries];

  explicit BackwardTile(const BlockAttentionInputs<T>& in) {
    static thread_local Workspace<T> workspace;  // kept: a call has many tiles
    const int64_t K = in.q.K, V = in.v.K;
    const int64_t k_stride = simd::round_up<T>(K), v_stride = simd::round_up<T>(V);
    const int64_t bias_elements = in.bias ? ReversedBias<T>::elements(in.bias_count) : 0;
    workspace.rewind();
    workspace.reserve(2 * KeyTile<T>::elements(K, V) + QueryTile<T>::elements(K) +
                      kQueries * (k_stride + 2 * v_stride) + 2 * kKeys * kQueries +
                      2 * bias_elements + 256);
    keys.allocate(workspace, K, V);
    queries.allocate(workspace, K);
    dy = workspace.take(kQueries * v_stride);
    dy_transposed = workspace.take(v_stride * kQueries);
    dq = workspace.take(kQueries * k_stride);
    weights = workspace.take(kKeys * kQueries);
    dweights = workspace.take(kKeys * kQueries);
    dk = workspace.take(kKeys * k_stride);
    dv = workspace.take(kKeys * v_stride);
    if (in.bias) {
      bias.values = workspace.take(bias_elements);
      dbias.values = workspace.take(bias_elements);
    }
  }
};

template <typename T>
class Backward {
 public:
  Backward(const BlockAttentionInputs<T>& in, const BlockAttentionOptions& options,
           SequenceView<const T> y, const T* log_sum_exp, SequenceView<const T> dy,
           const BlockAttentionGradients<T>& gradients)
      : in_(in),
        options_(options),
        y_(y),
        log_sum_exp_(log_sum_exp),
        dy_(dy),
        out_(gradients),
        segments_(make_segments(in)),
        heads_(in.q.H / in.k.H) {}

  void run() {
    clear(out_.dk);
    clear(out_.dv);
    clear(out_.dpast_k);
    clear(out_.dpast_v);
    plan();
    parallel_tasks(static_cast<int64_t>(runs_.size()), 1, [&] {
      return [&, tile = BackwardTile<T>(in_)](int64_t i) mutable { do_run(runs_[i], tile); };
    });
    sum_runs();
    sum_bias();
  }

 private:
  static void clear(const SequenceView<T>& view);
  void plan();
  void do_run(const Run<T>& run, BackwardTile<T>& tile);
  void load_queries(const Segment& segment, int64_t head, BackwardTile<T>& tile);
  void weights_and_gradients(const Segment& segment, DropoutMask& mask, BackwardTile<T>& tile);
  void add_keys(const Run<T>& run, BackwardTile<T>& tile);
  void sum_runs();
  void sum_bias();
  // Where the gradient of key u of a segment belongs.
  T* dk_at(const Segment& segment, int64_t u, int64_t group) const {
    if (u < segment.past) return out_.dpast_k ? out_.dpast_k.at(segment.row, u, group) : nullptr;
    return out_.dk.at(segment.row, segment.key_begin + u - segment.past, group);
  }
  T* dv_at(const Segment& segment, int64_t u, int64_t group) const {
    if (u < segment.past) return out_.dpast_v ? out_.dpast_v.at(segment.row, u, group) : nullptr;
    return out_.dv.at(segment.row, segment.key_begin + u - segment.past, group);
  }
  void add_to(T* place, const T* from, int64_t n) const {
    if (place == nullptr) return;
    for (int64_t c = 0; c < n; ++c) place[c] += from[c];
  }

  const BlockAttentionInputs<T>& in_;
  const BlockAttentionOptions& options_;
  SequenceView<const T> y_;
  const T* log_sum_exp_;
  SequenceView<const T> dy_;
  const BlockAttentionGradients<T>& out_;
  std::vector<Segment> segments_;
  int64_t heads_;
  std::vector<Run<T>> runs_;
  std::vector<T> sums_, bias_sums_;
};

template <typename T>
void Backward<T>::clear(const SequenceView<T>& view) {
  if (!view) return;
  parallel_for(view.B * view.T, 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t h = 0; h < view.H; ++h) {
        std::fill_n(view.at(i / view.T, i % view.T, h), view.K, T{0});
      }
    }
  });
}

// One run a (segment, key head), or several where that would leave threads idle.
template <typename T>
void Backward<T>::plan() {
  const int64_t units = std::max<int64_t>(1, static_cast<int64_t>(segments_.size()) * in_.k.H);
  const int64_t threads = thread_count();
  const int64_t parts = threads == 1 || units >= threads ? 1 : (2 * threads + units - 1) / units;
  const int64_t step = queries_per_tile(options_);
  int64_t elements = 0;
  std::vector<int64_t> offsets;
  for (const Segment& segment : segments_) {
    const int64_t tiles = (segment.queries + step - 1) / step;
    const int64_t own_parts = std::max<int64_t>(1, std::min(parts, tiles));
    for (int64_t group = 0; group < in_.k.H; ++group) {
      for (int64_t part = 0; part < own_parts; ++part) {
        const int64_t first = tiles * part / own_parts * step;
        const int64_t end = std::min(segment.queries, tiles * (part + 1) / own_parts * step);
        if (first >= end) continue;
        const KeyRange keys{visible_keys(segment, options_, first).begin,
                            visible_keys(segment, options_, end - 1).end};
        runs_.push_back({&segment, group, first, end, keys});
        offsets.push_back(own_parts > 1 ? elements : -1);
        if (own_parts > 1) elements += (keys.end - keys.begin) * (in_.q.K + in_.v.K);
      }
    }
  }
  sums_.assign(static_cast<size_t>(elements), T{0});
  const int64_t bias_elements = out_.dbias ? heads_ * in_.bias_count : 0;
  bias_sums_.assign(runs_.size() * static_cast<size_t>(bias_elements), T{0});
  for (size_t i = 0; i < runs_.size(); ++i) {
    if (offsets[i] >= 0) runs_[i].sums = sums_.data() + offsets[i];
    if (out_.dbias) runs_[i].bias_sums = bias_sums_.data() + i * bias_elements;
  }
}

template <typename T>
void Backward<T>::load_queries(const Segment& segment, int64_t head, BackwardTile<T>& tile) {
  const int64_t V = in_.v.K;
  for (int64_t lane = 0; lane < tile.queries.lanes; ++lane) {
    T* dy = tile.dy + lane * tile.keys.v_stride;
    const int64_t t = segment.query_begin + tile.queries.first + lane;
    // exp(0 - infinity) = 0: a query that is not there, or sees nothing, has no weights.
    constexpr T kNothing = std::numeric_limits<T>::infinity();
    tile.log_sum_exp[lane] = tile.queries.valid[lane]
                                 ? log_sum_exp_[(segment.row * in_.q.T + t) * in_.q.H + head]
                                 : kNothing;
    if (tile.log_sum_exp[lane] == kNothing) {
      // Weights of 0 would spread its contents, perhaps NaN.
      tile.y_dot_dy[lane] = 0;
      std::fill_n(dy, tile.keys.v_stride, T{0});
      continue;
    }
    copy_padded(dy_.at(segment.row, t, head), V, dy, tile.keys.v_stride,
                tile.queries.count * dy_.time_stride);
    // The normalizer's share, subtracted from every weight's gradient.
    const bool normalised = options_.weights == BlockWeights::softmax;
    tile.y_dot_dy[lane] = normalised ? dot_row(y_.at(segment.row, t, head), dy, V) : T{0};
  }
  chunked::transpose(tile.dy, tile.keys.v_stride, tile.queries.lanes, tile.keys.v_stride,
                     tile.dy_transposed, kQueries);
}

// From logits and dL/dweight (before dropout's factor), in place: weights as they multiplied the
// values, and dL/dlogit = slope * (dweight - y . dy), where the slope of a softmax is its weight
// and weights that are not normalised have no y . dy.
template <typename T>
void Backward<T>::weights_and_gradients(const Segment& segment, DropoutMask& mask,
                                        BackwardTile<T>& tile) {
  using simd::load;
  const QueryTile<T>& queries = tile.queries;
  alignas(64) T factors[kQueries];
  alignas(64) T slopes[kQueries];
  const bool dropping = options_.dropout > 0;
  const bool normalised = options_.weights == BlockWeights::softmax;
  for (int64_t j = 0; j < tile.keys.count; ++j) {
    if (dropping) {
      mask.factors(segment.query_time + queries.first, queries.lanes,
                   segment.key_time + tile.keys.index[j], factors);
    }
    if (!normalised) weigh_row<T>(options_, queries.lanes, tile.weights + j * kQueries, slopes);
    const int64_t distance = segment.past + queries.first - tile.keys.index[j];
    T* dbias = out_.dbias ? tile.dbias.values + tile.dbias.origin + distance : nullptr;
    for (int64_t lane = 0; lane < queries.lanes; lane += simd::kLanes<T>) {
      T* weight_place = tile.weights + j * kQueries + lane;
      T* dweight_place = tile.dweights + j * kQueries + lane;
      auto weight = load(weight_place);
      if (normalised) weight = simd::exp<T>(weight - load(tile.log_sum_exp + lane));
      const auto slope = normalised ? weight : load(slopes + lane);
      auto dweight = load(dweight_place);
      if (dropping) dweight *= load(factors + lane);
      const auto dlogit = slope * (dweight - load(tile.y_dot_dy + lane));
      if (dropping) weight *= load(factors + lane);
      simd::store(weight_place, weight);
      simd::store(dweight_place, dlogit);
      if (dbias) simd::store(dbias + lane, load(dbias + lane) + dlogit);
    }
  }
}

// dk += scale dlogits q and dv += weights dy, for the keys of the tile.
template <typename T>
void Backward<T>::add_keys(const Run<T>& run, BackwardTile<T>& tile) {
  const int64_t K = in_.q.K, V = in_.v.K, past = run.segment->past;
  const int64_t keys = tile.keys.count, lanes = tile.queries.lanes;
  const int64_t k_stride = tile.keys.k_stride, v_stride = tile.keys.v_stride;
  const int64_t first = tile.keys.index[0], last = tile.keys.index[keys - 1];
  const T scale = static_cast<T>(options_.scale);
  const TileOperand<T> dlogits{tile.dweights, kQueries}, weights{tile.weights, kQueries};
  const TileOperand<T> q{tile.queries.rows, k_stride}, dy{tile.dy, v_stride};
  const auto place = [&](int64_t u, bool key) {
    if (run.sums) return run.sums + (u - run.keys.begin) * (K + V) + (key ? 0 : K);
    return key ? dk_at(*run.segment, u, run.group) : dv_at(*run.segment, u, run.group);
  };
  if (last - first + 1 == keys && first >= past) {
    // Rows without a gap: straight to their place.
    tile_gemm<T>(keys, K, lanes, scale, dlogits, q, Write::accumulate, place(first, true),
                 run.sums ? K + V : out_.dk.time_stride);
    tile_gemm<T>(keys, V, lanes, T{1}, weights, dy, Write::accumulate, place(first, false),
                 run.sums ? K + V : out_.dv.time_stride);
    return;
  }
  tile_gemm<T>(keys, k_stride, lanes, scale, dlogits, q, Write::overwrite, tile.dk, k_stride);
  tile_gemm<T>(keys, v_stride, lanes, T{1}, weights, dy, Write::overwrite, tile.dv, v_stride);
  for (int64_t j = 0; j < keys; ++j) {
    add_to(place(tile.keys.index[j], true), tile.dk + j * k_stride, K);
    add_to(place(tile.keys.index[j], false), tile.dv + j * v_stride, V);
  }
}

template <typename T>
void Backward<T>::do_run(const Run<T>& run, BackwardTile<T>& tile) {
  const int64_t K = in_.q.K, V = in_.v.K;
  const int64_t k_stride = tile.keys.k_stride, v_stride = tile.keys.v_stride;
  const Segment& segment = *run.segment;
  const int64_t step = queries_per_tile(options_);
  const T scale = static_cast<T>(options_.scale);
  const int64_t example = in_.example_ids ? in_.example_ids[segment.row] : segment.row;
  for (int64_t head = run.group * heads_; head < (run.group + 1) * heads_; ++head) {
    DropoutMask mask(options_, example, head);
    tile.bias.fill(in_, head);
    tile.dbias.origin = tile.bias.origin;
    if (tile.dbias.values) {
      std::fill_n(tile.dbias.values, ReversedBias<T>::elements(in_.bias_count), T{0});
    }
    for (int64_t first = run.first; first < run.end; first += step) {
      QueryTile<T>& queries = tile.queries;
      queries.set(in_, options_, segment, head, first, std::min(step, run.end - first));
      load_queries(segment, head, tile);
      std::fill_n(tile.dq, queries.lanes * k_stride, T{0});
      for (int64_t u = queries.seen.begin; u < queries.seen.end;) {
        u = tile.keys.gather(in_, segment, run.group, u, queries.seen.end, queries.next_keys());
        const int64_t keys = tile.keys.count, lanes = queries.lanes;
        if (keys == 0) break;
        tile_gemm<T>(keys, lanes, K, scale, {tile.keys.k, k_stride}, {queries.transposed, kQueries},
                     Write::overwrite, tile.weights, kQueries);
        finish_logits(queries, tile.keys, segment, tile.bias, tile.weights);
        tile_gemm<T>(keys, lanes, V, T{1}, {tile.keys.v, v_stride}, {tile.dy_transposed, kQueries},
                     Write::overwrite, tile.dweights, kQueries);
        weights_and_gradients(segment, mask, tile);
        add_keys(run, tile);
        tile_gemm<T>(lanes, k_stride, keys, scale, {tile.dweights, kQueries, true},
                     {tile.keys.k, k_stride}, Write::accumulate, tile.dq, k_stride);
      }
      for (int64_t lane = 0; lane < queries.count; ++lane) {
        std::copy_n(tile.dq + lane * k_stride, K,
                    out_.dq.at(segment.row, segment.query_begin + first + lane, head));
      }
    }
    if (run.bias_sums != nullptr) {
      T* sums = run.bias_sums + (head - run.group * heads_) * in_.bias_count;
      const T* reversed = tile.dbias.values + ReversedBias<T>::kMargin + in_.bias_count - 1;
      for (int64_t x = 0; x < in_.bias_count; ++x) sums[x] += reversed[-x];
    }
  }
}

// Adds up the runs that share keys, in order.
template <typename T>
void Backward<T>::sum_runs() {
  const int64_t K = in_.q.K, V = in_.v.K;
  size_t first = 0;
  while (first < runs_.size()) {
    size_t end = first + 1;
    while (end < runs_.size() && runs_[end].segment == runs_[first].segment &&
           runs_[end].group == runs_[first].group) {
      ++end;
    }
    const Segment& segment = *runs_[first].segment;
    const int64_t group = runs_[first].group;
    if (runs_[first].sums != nullptr) {
      parallel_for(segment.all_keys(), 64, [&](int64_t u_begin, int64_t u_end) {
        for (size_t i = first; i < end; ++i) {
          const Run<T>& run = runs_[i];
          for (int64_t u = std::max(u_begin, run.keys.begin); u < std::min(u_end, run.keys.end);
               ++u) {
            const T* sums = run.sums + (u - run.keys.begin) * (K + V);
            add_to(dk_at(segment, u, group), sums, K);
            add_to(dv_at(segment, u, group), sums + K, V);
          }
        }
      });
    }
    first = end;
  }
}

template <typename T>
void Backward<T>::sum_bias() {
  if (out_.dbias == nullptr) return;
  std::fill_n(out_.dbias, in_.bias_heads * in_.bias_count, T{0});
  for (const Run<T>& run : runs_) {
    for (int64_t i = 0; i < heads_; ++i) {
      const int64_t row = in_.bias_heads == 1 ? 0 : run.group * heads_ + i;
      add_to(out_.dbias + row * in_.bias_count, run.bias_sums + i * in_.bias_count, in_.bias_count);
    }
  }
}

}  // namespace

template <typename T>
void block_attention_backward(const BlockAttentionInputs<T>& in,
                              const BlockAttentionOptions& options, SequenceView<const T> y,
                              const T* log_sum_exp, SequenceView<const T> dy,
                              const BlockAttentionGradients<T>& gradients) {
  check_block_attention(in, options);
  Backward<T>(in, options, y, log_sum_exp, dy, gradients).run();
}

template void block_attention_backward<float>(const BlockAttentionInputs<float>&,
                                              const BlockAttentionOptions&,
                                              SequenceView<const float>, const float*,
                                              SequenceView<const float>,
                                              const BlockAttentionGradients<float>&);
template void block_attention_backward<double>(const BlockAttentionInputs<double>&,
                                               const BlockAttentionOptions&,
                                               SequenceView<const double>, const double*,
                                               SequenceView<const double>,
                                               const BlockAttentionGradients<double>&);

}  // namespace linnet
