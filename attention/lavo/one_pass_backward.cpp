// LAVO's one pass, backward: a scan in reverse, a tile of windows at a time. Gradients of all later
// reads of the memory are known when a tile is reached. So the whole gradient of the tile's outputs
// f, and with it those of q, k and v, is computed at once.
#include "attention/lavo/one_pass_tile.h"
#include "core/threads.h"

namespace linnet {
namespace {

using namespace lavo_pass_detail;

template <typename T>
class Backward {
 public:
  Backward(const LavoPassInputs<T>& in, const LavoPassOptions& options, const Plan& plan,
           const LavoPassSums<const T>& sums, SequenceView<const T> dy,
           const LavoPassGradients<T>& out)
      : in_(in),
        options_(options),
        plan_(plan),
        sums_(sums),
        dy_(dy),
        out_(out),
        head_(in, options),
        kept_(plan, in.q.H, head_.reach),
        dtable_(head_.table.size()) {
    const Head<T>& h = head_;
    for (T** rows : {&keys_, &values_, &queries_, &doutputs_})
      *rows = scratch_.take(rows_of_tile());
    for (T** rows : {&doutputs_transposed_, &dqueries_, &dcodes_}) {
      *rows = scratch_.take(kTokens * h.dp);
    }
    for (T** rows : {&dprojected_, &reads_, &dreads_, &dread_, &dwritten_}) {
      *rows = scratch_.take(kTokens * h.rp);
    }
    dweights_ = scratch_.take(all_slots());
    for (T** rows : {&dkeys_, &dvalues_}) *rows = scratch_.take(kBlock * h.dp);
    mean_.assign(static_cast<size_t>(h.rp), T{0});
    dcompleted_ = dpartial_ = dopen_ = mean_;
  }

  // All sequences of a row, for one head; adds to dbasis [r,d] and dbias [2 window - 1] (or null).
  // dcompleted and dpartial [r] (or null) are the gradients of the row's state.
  void run(int64_t row, int64_t head, const T* dcompleted, const T* dpartial, T* dbasis, T* dbias) {
    if (head != loaded_) head_.load(in_, loaded_ = head);
    std::fill(dtable_.begin(), dtable_.end(), T{0});
    for (const Sequence& s : plan_.sequences) {
      if (s.row != row) continue;
      const auto seed = [&](const T* from, std::vector<T>& to) {
        std::fill(to.begin(), to.end(), T{0});
        if (s.carries_out && from != nullptr) std::copy_n(from, head_.r, to.begin());
      };
      seed(dcompleted, dcompleted_);
      seed(dpartial, dpartial_);
      seed(nullptr, dopen_);
      for (T* rows : {queries_, doutputs_}) std::fill_n(rows, rows_of_tile(), T{0});
      std::fill_n(dweights_, all_slots(), T{0});
      const int64_t tiles = (s.queries + kTokens - 1) / kTokens;
      for (int64_t begin = (tiles - 1) * kTokens; begin >= 0; begin -= kTokens) {
        const Tile tile(s, begin);
        load(s, tile, head);
        through_reads(s, tile, head, dbasis);
        through_memory(s, tile, head, dbasis);
        through_window(s, tile, head);
      }
    }
    if (dbias != nullptr) fold_table(dbias);
  }

 private:
  void load(const Sequence& s, const Tile& tile, int64_t head);
  void through_reads(const Sequence& s, const Tile& tile, int64_t head, T* dbasis);
  void through_weights(const Sequence& s, const Tile& tile, int64_t head);
  void through_memory(const Sequence& s, const Tile& tile, int64_t head, T* dbasis);
  void through_window(const Sequence& s, const Tile& tile, int64_t head);
  void score_gradients(const T* weights, T* dweights);
  void fold_table(T* dbias) const;
  int64_t place(const Sequence& s, int64_t group, int64_t head) const {
    return (s.first_group + group) * in_.q.H + head;
  }
  int64_t rows_of_tile() const { return (head_.reach + kTokens) * head_.dp; }
  int64_t all_slots() const { return (kTokens + head_.reach) * head_.reach; }

  const LavoPassInputs<T>& in_;
  const LavoPassOptions& options_;
  const Plan& plan_;
  LavoPassSums<const T> sums_;
  SequenceView<const T> dy_;
  const LavoPassGradients<T>& out_;
  Head<T> head_;
  Kept kept_;
  int64_t loaded_ = -1;
  chunked::Scratch<T> scratch_;
  // [reach + kTokens, dp]: keys before the tile, then its own; queries, and gradients of outputs,
  // of the tile, then those after it. Likewise weights, by blocks.
  T *keys_, *values_, *queries_, *doutputs_;
  T* dweights_;
  T *doutputs_transposed_, *dqueries_, *dcodes_, *dkeys_, *dvalues_;
  // The gradient of B q, p * m, B dy; by window: gradients of reads and writes.
  T *dprojected_, *reads_, *dreads_, *dread_, *dwritten_;
  std::vector<T> mean_, dtable_;
  // Gradients of the sums over all windows completed so far, and of the row's open window;
  // gradients of the reads by tokens of the tile's last window that lie after the tile.
  std::vector<T> dcompleted_, dpartial_, dopen_;
};

// The rows of a tile; dy is already multiplied by the factor of either part in y.
template <typename T>
void Backward<T>::load(const Sequence& s, const Tile& tile, int64_t head) {
  const Head<T>& h = head_;
  const int64_t end = tile.begin + tile.count, whole = kTokens * h.dp, reach = h.reach * h.dp;
  const bool last = end == s.queries;
  for (const auto& [view, rows] : {std::pair(in_.k, keys_), std::pair(in_.v, values_)}) {
    if (!last) simd::copy(rows, reach, rows + whole);
    load_tokens(view, s, tile.begin - h.reach, last ? end : end - h.reach, head, rows, h.dp);
  }
  for (const auto& [view, rows] : {std::pair(in_.q, queries_), std::pair(dy_, doutputs_)}) {
    simd::copy(rows, reach, rows + whole);
    load_tokens(view, s, tile.begin, end, head, rows, h.dp);
  }
  simd::copy(dweights_, h.reach * h.reach, dweights_ + kTokens * h.reach);
  for (int64_t k = tile.first; k < tile.end; ++k) {
    const bool alone = options_.local_only && plan_.seen[s.first_group + k] == 0;
    const T share = alone ? T{1} : T(0.5);
    T* rows = doutputs_ + tile.from(s, k) * h.dp;
    for (int64_t i = 0; i < (tile.to(s, k) - tile.from(s, k)) * h.dp; ++i) rows[i] *= share;
  }
}

// With a = scale * m * y and u = B dy, per token: dp = m * u, da = p * (dp - p . dp),
// dm = p * u + scale * y * da, dy = scale * m * da (y = B q here). Leaves p * m, dy and, summed by
// window, dm.
template <typename T>
void Backward<T>::through_weights(const Sequence& s, const Tile& tile, int64_t head) {
  using simd::load;
  using simd::store;
  using simd::Vector;
  const Head<T>& h = head_;
  const T* kept = sums_.projections + token_of(in_, s, head, tile.begin) * h.rp;
  std::fill_n(dread_, (tile.end - tile.first) * h.rp, T{0});
  for (int64_t k = tile.first; k < tile.end; ++k) {
    const int64_t from = tile.from(s, k), to = tile.to(s, k), seen = plan_.seen[s.first_group + k];
    if (seen == 0) {
      for (T* rows : {dprojected_, reads_}) std::fill(rows + from * h.rp, rows + to * h.rp, T{0});
      continue;
    }
    const T* sum = sums_.before + place(s, k, head) * h.r;
    const T factor = T{1} / static_cast<T>(seen);
    for (int64_t l = 0; l < h.r; ++l) mean_[l] = sum[l] * factor;
    T* dsum = dread_ + (k - tile.first) * h.rp;
    for (int64_t at = from * h.rp; at < to * h.rp; at += h.rp) {
      const T* y = kept + at;
      T* dy = dprojected_ + at;
      T* p = reads_ + at;
      const T* u = dreads_ + at;
      simd::copy(y, h.rp, p);
      memory_weights(h.r, h.rp, h.scale, mean_.data(), p);
      Vector<T> along = {};
      for (int64_t l = 0; l < h.rp; l += simd::kLanes<T>) {
        along += load(p + l) * load(&mean_[l]) * load(u + l);
      }
      const T dot = simd::sum<T>(along);
      for (int64_t l = 0; l < h.rp; l += simd::kLanes<T>) {
        const Vector<T> weight = load(p + l), mean = load(&mean_[l]);
        const Vector<T> da = weight * (mean * load(u + l) - dot);
        store(dsum + l,
              load(dsum + l) + factor * (weight * load(u + l) + h.scale * load(y + l) * da));
        store(dy + l, h.scale * mean * da);
        store(p + l, weight * mean);
      }
    }
  }
}

// Gradients of queries and of the basis from the tile's reads.
template <typename T>
void Backward<T>::through_reads(const Sequence& s, const Tile& tile, int64_t head, T* dbasis) {
  const Head<T>& h = head_;
  const TileOperand<T> columns{h.basis.columns.get(), h.rp};
  const auto prefetch_keys = [&](int64_t block) {
    prefetch_block<false>(in_.k, s, tile.begin - h.reach - kTokens + block * kBlock, head);
  };
  prefetch_keys(0);
  prefetch_keys(1);
  tile_gemm<T>(tile.count, h.rp, h.d, T{1}, {doutputs_, h.dp}, columns, Write::overwrite, dreads_,
               h.rp);
  prefetch_keys(2);
  through_weights(s, tile, head);
  prefetch_keys(3);
  tile_gemm<T>(tile.count, h.d, h.r, T{1}, {dprojected_, h.rp}, h.basis.rows, Write::overwrite,
               dqueries_, h.dp);
  if (dbasis == nullptr) return;
  tile_gemm<T>(h.r, h.d, tile.count, T{1}, {reads_, h.rp, true}, {doutputs_, h.dp},
               Write::accumulate, dbasis, h.d);
  tile_gemm<T>(h.r, h.d, tile.count, T{1}, {dprojected_, h.rp, true}, {queries_, h.dp},
               Write::accumulate, dbasis, h.d);
}

// Adds to the gradients of the tile's outputs the gradients that later windows pass through the
// memory.
template <typename T>
void Backward<T>::through_memory(const Sequence& s, const Tile& tile, int64_t head, T* dbasis) {
  const Head<T>& h = head_;
  axpy_row(h.rp, T{1}, dopen_.data(), dread_ + (tile.end - 1 - tile.first) * h.rp);
  for (int64_t k = tile.end - 1; k >= tile.first; --k) {
    const bool open = k + 1 == s.groups && s.last_is_partial();
    const T* dread = dread_ + (k - tile.first) * h.rp;
    std::copy_n(open ? dpartial_.data() : dcompleted_.data(), h.rp,
                dwritten_ + (k - tile.first) * h.rp);
    // The gradient of a window's reads is complete at its first token.
    const bool known = tile.begins(s, k);
    if (known) axpy_row(h.rp, T{1}, dread, dcompleted_.data());
    if (k == tile.first && known) std::fill_n(dopen_.data(), h.rp, T{0});
    if (k == tile.first && !known) std::copy_n(dread, h.rp, dopen_.data());
  }
  const int64_t windows = tile.end - tile.first;
  tile_gemm<T>(windows, h.d, h.r, T{1}, {dwritten_, h.rp}, h.basis.rows, Write::overwrite, dcodes_,
               h.dp);
  // Only windows that begin here, so that each is counted once.
  const int64_t skipped = tile.begins(s, tile.first) ? 0 : 1;
  if (dbasis != nullptr) {
    tile_gemm<T>(h.r, h.d, windows - skipped, T{1}, {dwritten_ + skipped * h.rp, h.rp, true},
                 {sums_.codes + place(s, tile.first + skipped, head) * h.d, in_.q.H * h.d},
                 Write::accumulate, dbasis, h.d);
  }
  for (int64_t k = tile.first; k < tile.end; ++k) {
    for (int64_t j = tile.from(s, k); j < tile.to(s, k); ++j) {
      axpy_row(h.d, T{1}, dcodes_ + (k - tile.first) * h.dp, doutputs_ + j * h.dp);
    }
  }
  chunked::transpose(doutputs_, h.dp, chunked::padded(tile.count), h.dp, doutputs_transposed_,
                     kTokens);
}

// For each block the gradients of its queries, keys and values; those of keys and values are
// complete, since the queries after the block have stored their weights.
template <typename T>
void Backward<T>::through_window(const Sequence& s, const Tile& tile, int64_t head) {
  const Head<T>& h = head_;
  for (int64_t block = chunked::padded(tile.count) - kBlock; block >= 0; block -= kBlock) {
    const int64_t rows = block * h.dp, begin = tile.begin + block;
    const T* weights = sums_.weights + kept_.token(plan_, s, head, begin) * h.reach;
    T* dweights = dweights_ + block * h.reach;
    prefetch_block<false>(in_.q, s, begin - kTokens, head);
    if (tile.begin > 0) {
      chunked::prefetch_values<false>(weights - kTokens * h.reach, h.slots());
    }
    prefetch_block<false>(dy_, s, begin - kTokens, head);
    band_products<T>(h.reach, h.dp, T{1}, values_ + rows, h.dp, doutputs_transposed_ + block,
                     kTokens, Write::overwrite, dweights);
    prefetch_block<false>(in_.v, s, begin - h.reach - kTokens, head);
    score_gradients(weights, dweights);
    prefetch_block<true>(out_.dq, s, begin, head);
    band_gather<T>(h.reach, h.dp, h.scale, dweights, keys_ + rows, h.dp, Write::accumulate,
                   dqueries_ + rows, h.dp);
    prefetch_block<true>(out_.dk, s, begin, head);
    band_spread<T>(h.reach, h.dp, h.scale, dweights, queries_ + rows, h.dp, dkeys_, h.dp);
    prefetch_block<true>(out_.dv, s, begin, head);
    band_spread<T>(h.reach, h.dp, T{1}, weights, doutputs_ + rows, h.dp, dvalues_, h.dp);
    for (int64_t j = 0; j < std::min(kBlock, tile.count - block); ++j) {
      const int64_t t = s.query_begin + begin + j;
      simd::copy(dqueries_ + rows + j * h.dp, h.d, out_.dq.at(s.row, t, head));
      simd::copy(dkeys_ + j * h.dp, h.d, out_.dk.at(s.row, t, head));
      simd::copy(dvalues_ + j * h.dp, h.d, out_.dv.at(s.row, t, head));
    }
  }
}

// From gradients of a block's weights to those of its logits.
template <typename T>
void Backward<T>::score_gradients(const T* weights, T* dweights) {
  using simd::load;
  using simd::Vector;
  for (int64_t lane = 0; lane < kBlock; lane += simd::kLanes<T>) {
    // The term that the softmax's normalizer subtracts from every weight's gradient, in two chains.
    Vector<T> even = {}, odd = {};
    for (int64_t at = lane; at < head_.slots(); at += 2 * kBlock) {
      even += load(weights + at) * load(dweights + at);
      odd += load(weights + at + kBlock) * load(dweights + at + kBlock);
    }
    const Vector<T> mean = even + odd;
    for (int64_t at = lane; at < head_.slots(); at += kBlock) {
      const Vector<T> dlogit = load(weights + at) * (load(dweights + at) - mean);
      simd::store(dweights + at, dlogit);
      simd::store(&dtable_[at], load(&dtable_[at]) + dlogit);
    }
  }
}

template <typename T>
void Backward<T>::fold_table(T* dbias) const {
  for (int64_t slot = 0; slot < head_.reach; ++slot) {
    for (int64_t lane = 0; lane < kBlock; ++lane) {
      const int64_t before = head_.distance(slot, lane);
      if (before < head_.window) {
        dbias[head_.window - 1 - before] += dtable_[slot * kBlock + lane];
      }
    }
  }
}

}  // namespace

template <typename T>
void lavo_pass_backward(const LavoPassInputs<T>& in, const LavoPassOptions& options,
                        const LavoPassSums<const T>& sums, SequenceView<const T> dy,
                        const T* dcompleted, const T* dpartial, const LavoPassGradients<T>& out) {
  const Plan plan = make_pass_plan(in, options);
  const int64_t B = in.q.B, H = in.q.H, r = in.rank;
  const int64_t basis_size = r * in.q.K, bias_size = in.bias ? 2 * options.window - 1 : 0;
  // Gradients of parameters by row, added up in order.
  std::vector<T> bases(out.dbasis ? static_cast<size_t>(H * B * basis_size) : 0);
  std::vector<T> biases(static_cast<size_t>(H * B * bias_size));
  parallel_tasks(H * B, 1, [&] {
    return [&, scan = Backward<T>(in, options, plan, sums, dy, out)](int64_t task) mutable {
      const int64_t head = task / B, row = task % B, at = (row * H + head) * r;
      scan.run(row, head, dcompleted ? dcompleted + at : nullptr,
               dpartial ? dpartial + at : nullptr,
               out.dbasis ? bases.data() + task * basis_size : nullptr,
               in.bias ? biases.data() + task * bias_size : nullptr);
    };
  });
  if (out.dbasis) std::fill_n(out.dbasis, H * basis_size, T{0});
  if (out.dbias) std::fill_n(out.dbias, in.bias_heads * bias_size, T{0});
  for (int64_t task = 0; task < H * B; ++task) {
    const int64_t head = task / B;
    if (out.dbasis) {
      axpy_row(basis_size, T{1}, bases.data() + task * basis_size, out.dbasis + head * basis_size);
    }
    if (out.dbias) {
      axpy_row(bias_size, T{1}, biases.data() + task * bias_size,
               out.dbias + (in.bias_heads == 1 ? 0 : head) * bias_size);
    }
  }
}

#define LINNET_INSTANTIATE(T)                                                              \
  template void lavo_pass_backward<T>(const LavoPassInputs<T>&, const LavoPassOptions&,    \
                                      const LavoPassSums<const T>&, SequenceView<const T>, \
                                      const T*, const T*, const LavoPassGradients<T>&);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet
