// LAVO's one pass, backward: a scan in reverse, a tile of windows at a time. What later windows
// read from the memory is known when a tile is reached, so that the whole gradient of its outputs
// f, and with it those of q, k and v, is made at once.
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
        dtable_(head_.table.size()) {
    const Head<T>& h = head_;
    const int64_t key_size = h.key_rows() * h.dp, size = kTokens * h.dp, reads = kTokens * h.rp;
    for (T** rows : {&keys_, &values_, &dkeys_, &dvalues_}) *rows = scratch_.take(key_size);
    for (T** rows : {&queries_, &turned_, &doutputs_, &dturned_, &dqueries_, &dcodes_}) {
      *rows = scratch_.take(size);
    }
    for (T** rows : {&weights_, &dweights_}) *rows = scratch_.take(h.keys * kBlock);
    for (T** rows : {&projected_, &reads_, &dprojected_, &dread_, &dwritten_}) {
      *rows = scratch_.take(reads);
    }
    mean_.assign(static_cast<size_t>(h.rp), T{0});
    dcompleted_ = dpartial_ = mean_;
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
      std::fill_n(dkeys_, head_.history * head_.dp, T{0});
      std::fill_n(dvalues_, head_.history * head_.dp, T{0});
      const int64_t step = kTokens / s.width, tiles = (s.groups + step - 1) / step;
      for (int64_t number = tiles - 1; number >= 0; --number) {
        const TileRange tile(s, number * step);
        load(s, tile, head);
        through_reads(s, tile, head, dbasis);
        through_memory(s, tile, head, dbasis);
        through_window(s, tile, head);
        store(s, tile, head);
      }
    }
    if (dbias != nullptr) fold_table(dbias);
  }

 private:
  void load(const Sequence& s, const TileRange& tile, int64_t head);
  void through_reads(const Sequence& s, const TileRange& tile, int64_t head, T* dbasis);
  void through_memory(const Sequence& s, const TileRange& tile, int64_t head, T* dbasis);
  void through_window(const Sequence& s, const TileRange& tile, int64_t head);
  void score_gradients();
  void store(const Sequence& s, const TileRange& tile, int64_t head);
  void fold_table(T* dbias) const;
  int64_t place(const Sequence& s, int64_t group, int64_t head) const {
    return (s.first_group + group) * in_.q.H + head;
  }

  const LavoPassInputs<T>& in_;
  const LavoPassOptions& options_;
  const Plan& plan_;
  LavoPassSums<const T> sums_;
  SequenceView<const T> dy_;
  const LavoPassGradients<T>& out_;
  Head<T> head_;
  int64_t loaded_ = -1;
  chunked::Scratch<T> scratch_;
  // Rows of a tile. Gradients of keys and values begin with the rows of the history, to which the
  // tile before adds its own.
  T *keys_, *values_, *dkeys_, *dvalues_;
  T *queries_, *turned_, *doutputs_, *dturned_, *dqueries_, *dcodes_;
  T *weights_, *dweights_;  // of a block, [keys, kBlock]
  // B q (then its gradient), p * m, B dy; by window: gradients of what is read and written.
  T *projected_, *reads_, *dprojected_, *dread_, *dwritten_;
  std::vector<T> mean_, dtable_;
  // Gradients of all windows completed so far, and of the open one.
  std::vector<T> dcompleted_, dpartial_;
};

// The rows of a tile; dy already multiplied by the share that either part has of y.
template <typename T>
void Backward<T>::load(const Sequence& s, const TileRange& tile, int64_t head) {
  const Head<T>& h = head_;
  const int64_t t = s.query_begin + tile.begin;
  h.load_keys(in_.k, s, tile, head, keys_);
  h.load_keys(in_.v, s, tile, head, values_);
  chunked::load_rows(in_.q, nullptr, s.row, t, tile.count, head, queries_, h.dp);
  chunked::load_rows(dy_, nullptr, s.row, t, tile.count, head, doutputs_, h.dp);
  for (int64_t j = 0; j < tile.count; ++j) {
    const bool empty = plan_.seen[s.first_group + s.group_of(tile.begin + j)] == 0;
    const T share = empty && options_.local_only ? T{1} : T(0.5);
    for (int64_t c = 0; c < h.dp; ++c) doutputs_[j * h.dp + c] *= share;
  }
  chunked::transpose(queries_, h.dp, chunked::padded(tile.count), h.dp, turned_, kTokens);
  for (T* rows : {dkeys_, dvalues_}) {
    std::copy_backward(rows, rows + h.history * h.dp, rows + (tile.count + h.history) * h.dp);
    std::fill_n(rows, tile.count * h.dp, T{0});
    std::fill(rows + (tile.count + h.history) * h.dp, rows + h.key_rows() * h.dp, T{0});
  }
}

// With a = scale * m * y and u = B dy, per token: dp = m * u, da = p * (dp - p . dp),
// dm = p * u + scale * y * da, dy = scale * m * da (y = B q here).
template <typename T>
void Backward<T>::through_reads(const Sequence& s, const TileRange& tile, int64_t head, T* dbasis) {
  using simd::load;
  using simd::store;
  using simd::Vector;
  const Head<T>& h = head_;
  const int64_t rows = chunked::padded(tile.count);
  const TileOperand<T> columns{h.basis.columns.data(), h.rp};
  tile_gemm<T>(tile.count, h.rp, h.d, T{1}, {queries_, h.dp}, columns, Write::overwrite, projected_,
               h.rp);
  tile_gemm<T>(tile.count, h.rp, h.d, T{1}, {doutputs_, h.dp}, columns, Write::overwrite,
               dprojected_, h.rp);
  std::fill_n(dread_, (tile.end - tile.first) * h.rp, T{0});
  int64_t group = -1;
  T factor = 0;
  for (int64_t j = 0; j < rows; ++j) {
    const int64_t k = s.group_of(tile.begin + std::min(j, tile.count - 1));
    const int64_t seen = plan_.seen[s.first_group + k];
    T* y = projected_ + j * h.rp;
    T* p = reads_ + j * h.rp;
    const T* u = dprojected_ + j * h.rp;
    if (seen == 0 || j >= tile.count) {
      std::fill_n(y, h.rp, T{0});
      std::fill_n(p, h.rp, T{0});
      continue;
    }
    if (k != group) {
      const T* sum = sums_.before + place(s, k, head) * h.r;
      factor = T{1} / static_cast<T>(seen);
      for (int64_t l = 0; l < h.r; ++l) mean_[l] = sum[l] * factor;
      group = k;
    }
    std::copy_n(y, h.rp, p);
    memory_weights(h.r, h.rp, h.scale, mean_.data(), p);
    Vector<T> along = {};
    for (int64_t l = 0; l < h.rp; l += simd::kLanes<T>) {
      along += load(p + l) * load(&mean_[l]) * load(u + l);
    }
    const T dot = simd::sum<T>(along);
    T* dsum = dread_ + (k - tile.first) * h.rp;
    for (int64_t l = 0; l < h.rp; l += simd::kLanes<T>) {
      const Vector<T> weight = load(p + l), mean = load(&mean_[l]);
      const Vector<T> da = weight * (mean * load(u + l) - dot);
      store(dsum + l,
            load(dsum + l) + factor * (weight * load(u + l) + h.scale * load(y + l) * da));
      store(y + l, h.scale * mean * da);
      store(p + l, weight * mean);
    }
  }
  tile_gemm<T>(rows, h.d, h.r, T{1}, {projected_, h.rp}, {h.basis.rows.data(), h.d},
               Write::overwrite, dqueries_, h.dp);
  if (dbasis == nullptr) return;
  tile_gemm<T>(h.r, h.d, tile.count, T{1}, {reads_, h.rp, true}, {doutputs_, h.dp},
               Write::accumulate, dbasis, h.d);
  tile_gemm<T>(h.r, h.d, tile.count, T{1}, {projected_, h.rp, true}, {queries_, h.dp},
               Write::accumulate, dbasis, h.d);
}

// Adds to the gradients of the tile's outputs what later windows pass through the memory.
template <typename T>
void Backward<T>::through_memory(const Sequence& s, const TileRange& tile, int64_t head,
                                 T* dbasis) {
  const Head<T>& h = head_;
  const int64_t windows = tile.end - tile.first;
  for (int64_t k = tile.end - 1; k >= tile.first; --k) {
    const bool open = k + 1 == s.groups && s.last_is_partial();
    std::copy_n(open ? dpartial_.data() : dcompleted_.data(), h.rp,
                dwritten_ + (k - tile.first) * h.rp);
    axpy_row(h.rp, T{1}, dread_ + (k - tile.first) * h.rp, dcompleted_.data());
  }
  tile_gemm<T>(windows, h.d, h.r, T{1}, {dwritten_, h.rp}, {h.basis.rows.data(), h.d},
               Write::overwrite, dcodes_, h.dp);
  if (dbasis != nullptr) {
    tile_gemm<T>(h.r, h.d, windows, T{1}, {dwritten_, h.rp, true},
                 {sums_.codes + place(s, tile.first, head) * h.d, in_.q.H * h.d}, Write::accumulate,
                 dbasis, h.d);
  }
  for (int64_t j = 0; j < tile.count; ++j) {
    const int64_t k = s.group_of(tile.begin + j) - tile.first;
    axpy_row(h.d, T{1}, dcodes_ + k * h.dp, doutputs_ + j * h.dp);
  }
  chunked::transpose(doutputs_, h.dp, chunked::padded(tile.count), h.dp, dturned_, kTokens);
}

template <typename T>
void Backward<T>::through_window(const Sequence& s, const TileRange& tile, int64_t head) {
  const Head<T>& h = head_;
  for (int64_t block = 0; block < tile.count; block += kBlock) {
    const int64_t rows = block * h.dp;
    for (const auto& view : {in_.q, in_.k, in_.v, dy_}) {
      prefetch_rows<false>(view, s, tile.begin - kTokens + block, kBlock, head);
    }
    for (const auto& view : {out_.dq, out_.dk, out_.dv}) {
      prefetch_rows<true>(view, s, tile.begin + block, kBlock, head);
    }
    h.weigh(tile, block, keys_, turned_, weights_);
    tile_gemm<T>(h.keys, kBlock, h.d, T{1}, {values_ + rows, h.dp}, {dturned_ + block, kTokens},
                 Write::overwrite, dweights_, kBlock);
    score_gradients();
    tile_gemm<T>(h.keys, h.dp, kBlock, T{1}, {weights_, kBlock}, {doutputs_ + rows, h.dp},
                 Write::accumulate, dvalues_ + rows, h.dp);
    tile_gemm<T>(h.keys, h.dp, kBlock, h.scale, {dweights_, kBlock}, {queries_ + rows, h.dp},
                 Write::accumulate, dkeys_ + rows, h.dp);
    tile_gemm<T>(kBlock, h.d, h.keys, h.scale, {dweights_, kBlock, true}, {keys_ + rows, h.dp},
                 Write::accumulate, dqueries_ + rows, h.dp);
  }
}

// dweights_ from gradients of weights to those of logits.
template <typename T>
void Backward<T>::score_gradients() {
  using simd::load;
  using simd::Vector;
  for (int64_t lane = 0; lane < kBlock; lane += simd::kLanes<T>) {
    // What the normalising sum takes from every weight's gradient, in two chains.
    Vector<T> even = {}, odd = {};
    for (int64_t at = lane; at < head_.keys * kBlock; at += 2 * kBlock) {
      even += load(weights_ + at) * load(dweights_ + at);
      odd += load(weights_ + at + kBlock) * load(dweights_ + at + kBlock);
    }
    const Vector<T> mean = even + odd;
    for (int64_t at = lane; at < head_.keys * kBlock; at += kBlock) {
      const Vector<T> dlogit = load(weights_ + at) * (load(dweights_ + at) - mean);
      simd::store(dweights_ + at, dlogit);
      simd::store(&dtable_[at], load(&dtable_[at]) + dlogit);
    }
  }
}

template <typename T>
void Backward<T>::store(const Sequence& s, const TileRange& tile, int64_t head) {
  const Head<T>& h = head_;
  for (int64_t j = 0; j < tile.count; ++j) {
    const int64_t t = s.query_begin + tile.begin + j;
    std::copy_n(dqueries_ + j * h.dp, h.d, out_.dq.at(s.row, t, head));
    std::copy_n(dkeys_ + (h.history + j) * h.dp, h.d, out_.dk.at(s.row, t, head));
    std::copy_n(dvalues_ + (h.history + j) * h.dp, h.d, out_.dv.at(s.row, t, head));
  }
}

template <typename T>
void Backward<T>::fold_table(T* dbias) const {
  for (int64_t j = 0; j < head_.keys; ++j) {
    for (int64_t lane = 0; lane < kBlock; ++lane) {
      const int64_t distance = lane + head_.history - j;
      if (distance < 0 || distance >= head_.window) continue;
      dbias[head_.window - 1 - distance] += dtable_[j * kBlock + lane];
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
