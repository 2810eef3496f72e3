// LAVO's one pass, forward.
#include "attention/lavo/one_pass_tile.h"
#include "core/error.h"
#include "core/threads.h"

namespace linnet {
namespace lavo_pass_detail {

template <typename T>
Plan make_pass_plan(const LavoPassInputs<T>& in, const LavoPassOptions& options) {
  const auto same = [&](const SequenceView<const T>& x) {
    return x.B == in.q.B && x.T == in.q.T && x.H == in.q.H && x.K == in.q.K;
  };
  require(same(in.k) && same(in.v), "lavo in one pass: k and v must have the shape of q");
  require(options.window >= 1 && options.window <= kLavoPassWindow,
          "lavo in one pass: expected a window of 1 to ", kLavoPassWindow, ", got ",
          options.window);
  for (const Span& span : in.spans) {
    require(!span.carries_in, "lavo in one pass: it cannot continue a decode state");
  }
  OrthogonalMemoryOptions memory;
  memory.window = options.window;
  return make_plan(memory_inputs(in), memory);
}
template Plan make_pass_plan<float>(const LavoPassInputs<float>&, const LavoPassOptions&);
template Plan make_pass_plan<double>(const LavoPassInputs<double>&, const LavoPassOptions&);

}  // namespace lavo_pass_detail

namespace {

using namespace lavo_pass_detail;

template <typename T>
class Forward {
 public:
  Forward(const LavoPassInputs<T>& in, const LavoPassOptions& options, const Plan& plan,
          SequenceView<T> y, const LavoPassSums<T>& sums)
      : in_(in),
        options_(options),
        plan_(plan),
        y_(y),
        sums_(sums),
        head_(in, options),
        kept_(plan, in.q.H, head_.reach) {
    const Head<T>& h = head_;
    for (T** rows : {&keys_, &values_}) *rows = scratch_.take((h.reach + kTokens) * h.dp);
    for (T** rows : {&queries_, &queries_transposed_, &local_})
      *rows = scratch_.take(kTokens * h.dp);
    for (T** rows : {&reads_, &written_}) *rows = scratch_.take(kTokens * h.rp);
    weights_ = scratch_.take(h.slots());
    mean_.assign(static_cast<size_t>(h.rp), T{0});
    completed_ = partial_ = mean_;
  }

  // One head of one sequence; leaves completed() and partial() sums of B f.
  void run(const Sequence& s, int64_t head) {
    const Head<T>& h = head_;
    if (head != loaded_) head_.load(in_, loaded_ = head);
    std::fill(completed_.begin(), completed_.end(), T{0});
    std::fill(partial_.begin(), partial_.end(), T{0});
    for (int64_t begin = 0; begin < s.queries; begin += kTokens) {
      const Tile tile(s, begin);
      load(s, tile, head);
      attend(s, tile, head);
      write_memory(s, tile, head);
      read_memory(s, tile, head);
    }
    if (sums_.weights != nullptr) {
      std::fill_n(kept_weights(s, head, chunked::padded(s.queries)), h.reach * h.reach, T{0});
    }
  }
  const std::vector<T>& completed() const { return completed_; }
  const std::vector<T>& partial() const { return partial_; }

 private:
  T* kept_weights(const Sequence& s, int64_t head, int64_t t) const {
    return sums_.weights + kept_.token(plan_, s, head, t) * head_.reach;
  }
  void load(const Sequence& s, const Tile& tile, int64_t head);
  void attend(const Sequence& s, const Tile& tile, int64_t head);
  void write_memory(const Sequence& s, const Tile& tile, int64_t head);
  void read_memory(const Sequence& s, const Tile& tile, int64_t head);
  void weigh_memory(const Sequence& s, const Tile& tile, int64_t head);
  int64_t place(const Sequence& s, int64_t group, int64_t head) const {
    return (s.first_group + group) * in_.q.H + head;
  }

  const LavoPassInputs<T>& in_;
  const LavoPassOptions& options_;
  const Plan& plan_;
  SequenceView<T> y_;
  LavoPassSums<T> sums_;
  Head<T> head_;
  Kept kept_;
  int64_t loaded_ = -1;
  chunked::Scratch<T> scratch_;
  T *keys_, *values_;  // [reach + kTokens, dp]: those before the tile, then its own
  T *queries_, *queries_transposed_, *local_, *reads_, *written_, *weights_;
  std::vector<T> mean_, completed_, partial_;
};

template <typename T>
void Forward<T>::load(const Sequence& s, const Tile& tile, int64_t head) {
  const Head<T>& h = head_;
  for (const auto& [view, rows] : {std::pair(in_.k, keys_), std::pair(in_.v, values_)}) {
    if (tile.begin == 0) {
      std::fill_n(rows, h.reach * h.dp, T{0});
    } else {
      simd::copy(rows + kTokens * h.dp, h.reach * h.dp, rows);
    }
    load_tokens(view, s, tile.begin, tile.begin + tile.count, head, rows + h.reach * h.dp, h.dp);
  }
  load_tokens(in_.q, s, tile.begin, tile.begin + tile.count, head, queries_, h.dp);
  chunked::transpose(queries_, h.dp, chunked::padded(tile.count), h.dp, queries_transposed_,
                     kTokens);
}

// The window's output f of every token, in local_.
template <typename T>
void Forward<T>::attend(const Sequence& s, const Tile& tile, int64_t head) {
  const Head<T>& h = head_;
  for (int64_t block = 0; block < tile.count; block += kBlock) {
    const int64_t next = tile.begin + kTokens + block;
    prefetch_block<false>(in_.k, s, next, head);
    prefetch_block<false>(in_.q, s, next, head);
    T* weights = weights_;
    if (sums_.weights != nullptr) {
      weights = kept_weights(s, head, tile.begin + block);
      chunked::prefetch_values<true>(weights + h.slots(), h.slots());
    }
    h.weigh(tile.begin + block, keys_ + block * h.dp, queries_transposed_ + block, weights);
    prefetch_block<false>(in_.v, s, next, head);
    prefetch_block<true>(y_, s, tile.begin + block, head);
    band_gather<T>(h.reach, h.dp, T{1}, weights, values_ + block * h.dp, h.dp, Write::overwrite,
                   local_ + block * h.dp, h.dp);
  }
}

// Sums of the tile's windows, and the prefix sums before each of them.
template <typename T>
void Forward<T>::write_memory(const Sequence& s, const Tile& tile, int64_t head) {
  const Head<T>& h = head_;
  T* codes = sums_.codes + place(s, tile.first, head) * h.d;
  const int64_t stride = in_.q.H * h.d;
  for (int64_t k = tile.first; k < tile.end; ++k) {
    T* sum = codes + (k - tile.first) * stride;
    if (tile.begins(s, k)) std::fill_n(sum, h.d, T{0});
    for (int64_t j = tile.from(s, k); j < tile.to(s, k); ++j) {
      axpy_row(h.d, T{1}, local_ + j * h.dp, sum);
    }
  }
  tile_gemm<T>(tile.end - tile.first, h.rp, h.d, T{1}, {codes, stride},
               {h.basis.columns.get(), h.rp}, Write::overwrite, written_, h.rp);
  for (int64_t k = tile.first; k < tile.end; ++k) {
    std::copy_n(completed_.data(), h.r, sums_.before + place(s, k, head) * h.r);
    if (!tile.ends(s, k)) continue;
    const bool open = k + 1 == s.groups && s.last_is_partial();
    axpy_row(h.r, T{1}, written_ + (k - tile.first) * h.rp,
             open ? partial_.data() : completed_.data());
  }
}

// p * m of every token, from its projections, in reads_.
template <typename T>
void Forward<T>::weigh_memory(const Sequence& s, const Tile& tile, int64_t head) {
  const Head<T>& h = head_;
  for (int64_t k = tile.first; k < tile.end; ++k) {
    const int64_t from = tile.from(s, k), to = tile.to(s, k), seen = plan_.seen[s.first_group + k];
    if (seen == 0) {
      std::fill(reads_ + from * h.rp, reads_ + to * h.rp, T{0});
      continue;
    }
    const T* sum = sums_.before + place(s, k, head) * h.r;
    const T factor = T{1} / static_cast<T>(seen);
    for (int64_t l = 0; l < h.r; ++l) mean_[l] = sum[l] * factor;
    for (T* read = reads_ + from * h.rp; read < reads_ + to * h.rp; read += h.rp) {
      memory_weights(h.r, h.rp, h.scale, mean_.data(), read);
      for (int64_t l = 0; l < h.rp; ++l) read[l] *= mean_[l];
    }
  }
}

// y, from f and from the queries' reads of the memory.
template <typename T>
void Forward<T>::read_memory(const Sequence& s, const Tile& tile, int64_t head) {
  const Head<T>& h = head_;
  tile_gemm<T>(tile.count, h.rp, h.d, T{1}, {queries_, h.dp}, {h.basis.columns.get(), h.rp},
               Write::overwrite, reads_, h.rp);
  if (sums_.projections != nullptr) {
    simd::copy(reads_, tile.count * h.rp,
               sums_.projections + token_of(in_, s, head, tile.begin) * h.rp);
  }
  weigh_memory(s, tile, head);
  tile_gemm<T>(tile.count, h.d, h.r, T{1}, {reads_, h.rp}, h.basis.rows, Write::accumulate, local_,
               h.dp);
  for (int64_t k = tile.first; k < tile.end; ++k) {
    const bool alone = options_.local_only && plan_.seen[s.first_group + k] == 0;
    const T share = alone ? T{1} : T(0.5);
    for (int64_t j = tile.from(s, k); j < tile.to(s, k); ++j) {
      T* y = y_.at(s.row, s.query_begin + tile.begin + j, head);
      for (int64_t c = 0; c < h.d; ++c) y[c] = share * local_[j * h.dp + c];
    }
  }
}

}  // namespace

template <typename T>
LavoPassSizes lavo_pass_sizes(const LavoPassInputs<T>& in, const LavoPassOptions& options) {
  const Plan plan = make_pass_plan(in, options);
  const Head<T> head(in, options);
  return {static_cast<int64_t>(plan.seen.size()),
          Kept(plan, in.q.H, head.reach).tokens * in.q.H * head.reach,
          in.q.B * in.q.T * in.q.H * head.rp};
}

template <typename T>
void lavo_pass_forward(const LavoPassInputs<T>& in, const LavoPassOptions& options,
                       SequenceView<T> y, const LavoPassSums<T>& sums,
                       const OrthogonalMemoryState<T, int64_t>& state_out) {
  const Plan plan = make_pass_plan(in, options);
  const auto count = static_cast<int64_t>(plan.sequences.size());
  parallel_tasks(count * in.q.H, 1, [&] {
    return [&, scan = Forward<T>(in, options, plan, y, sums)](int64_t task) mutable {
      const Sequence& s = plan.sequences[task % count];
      const int64_t head = task / count;
      scan.run(s, head);
      if (!s.carries_out) return;
      const int64_t at = (s.row * in.q.H + head) * in.rank;
      if (state_out.completed) {
        std::copy_n(scan.completed().data(), in.rank, state_out.completed + at);
      }
      if (state_out.partial) std::copy_n(scan.partial().data(), in.rank, state_out.partial + at);
    };
  });
  for (const Sequence& s : plan.sequences) {
    if (!s.carries_out || state_out.counts == nullptr) continue;
    const int64_t completed = s.last_is_partial() ? s.code_from(s.groups - 1) : s.codes;
    state_out.counts[2 * s.row] = completed;
    state_out.counts[2 * s.row + 1] = s.codes - completed;
  }
}

#define LINNET_INSTANTIATE(T)                                                                  \
  template LavoPassSizes lavo_pass_sizes<T>(const LavoPassInputs<T>&, const LavoPassOptions&); \
  template void lavo_pass_forward<T>(const LavoPassInputs<T>&, const LavoPassOptions&,         \
                                     SequenceView<T>, const LavoPassSums<T>&,                  \
                                     const OrthogonalMemoryState<T, int64_t>&);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet
