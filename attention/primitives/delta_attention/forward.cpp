// The delta rule forward, chunk by chunk (chunk.h has the equations).
#include <algorithm>

#include "attention/primitives/common/simd.h"
#include "attention/primitives/delta_attention/chunk.h"

namespace linnet::delta {
namespace {

// One head of one span.
template <typename T>
class Forward {
 public:
  Forward(const DeltaInputs<T>& in, const DeltaKept<T>& kept, T* y)
      : in_(in),
        kept_(kept),
        y_(y),
        widths_(in),
        rows_(scratch_.take(2 * kChunk * widths_.K)),
        transposed_(scratch_.take(widths_.K * kChunk)),
        read_(scratch_.take(2 * kChunk * widths_.V)),
        x_(scratch_.take(kChunk * widths_.V)),
        u_(scratch_.take(kChunk * widths_.V)),
        P_(scratch_.take(kChunk * kChunk)),
        W_(scratch_.take(kChunk * kChunk)),
        beta_(scratch_.take(kChunk)),
        state_(scratch_.take(widths_.K * widths_.V)) {}

  void run(const Span& span, int64_t head, int64_t first_block, T* last) {
    const int64_t K = in_.k.K, V = in_.v.K, size = widths_.K * widths_.V;
    const int64_t place = (span.row * in_.k.H + head) * K * V;
    std::fill_n(state_, size, T(0));
    for (int64_t r = 0; span.carries_in && in_.state != nullptr && r < K; ++r) {
      std::copy_n(in_.state + place + r * V, V, state_ + r * widths_.V);
    }
    for (int64_t t = span.begin; t < span.end; t += kChunk) {
      const int64_t done = t - span.begin;
      if (kept_.states != nullptr && done % kBlock == 0) {
        const int64_t block = first_block + done / kBlock;
        std::copy_n(state_, size, kept_.states + (block * in_.k.H + head) * size);
      }
      chunk({span.row, t, std::min(kChunk, span.end - t), head});
    }
    for (int64_t r = 0; span.carries_out && r < K; ++r) {
      std::copy_n(state_ + r * widths_.V, V, last + place + r * V);
    }
  }

 private:
  void chunk(const Tokens& at) {
    const int64_t n = at.n, Kp = widths_.K, Vp = widths_.V;
    // Rows of q, and those of k behind them, so that one product reads the state for both.
    T *q = rows_, *k = rows_ + n * Kp, *y = read_, *expected = read_ + n * Vp;
    load(in_, in_.q, at, q, Kp);
    load(in_, in_.k, at, k, Kp);
    load(in_, in_.v, at, x_, Vp);
    load_beta(in_, at, beta_);
    decay_.load(in_, at);
    const auto scale = static_cast<T>(in_.query_scale);
    for (int64_t i = 0; i < n * Kp; ++i) q[i] *= scale;
    make_triangles(widths_, decay_, n, q, k, transposed_, P_, W_);
    tile_gemm<T>(2 * n, Vp, Kp, T(1), {rows_, Kp}, {state_, Vp}, Write::overwrite, read_, Vp);
    decay_.scale_since_start(y, Vp);
    decay_.scale_since_start(expected, Vp);
    for (int64_t i = 0; i < n * Vp; ++i) x_[i] -= expected[i];
    solve(n, Vp, P_, beta_, x_, u_);
    add_triangle_times<T>(n, Vp, {W_, kChunk}, u_, Vp, y, Vp);
    decay_.scale_until_end(k, Kp);
    decay_.scale_state(state_, Kp * Vp);
    tile_gemm<T>(Kp, Vp, n, T(1), {k, Kp, true}, {u_, Vp}, Write::accumulate, state_, Vp);
    store(at, y, y_);
    if (kept_.corrections != nullptr) store(at, x_, kept_.corrections);
  }

  void store(const Tokens& at, const T* rows, T* to) const {
    const int64_t V = in_.v.K;
    for (int64_t i = 0; i < at.n; ++i) {
      simd::copy(rows + i * widths_.V, V, to + (first_index(in_, at) + i * in_.k.H) * V);
    }
  }

  const DeltaInputs<T>& in_;
  const DeltaKept<T>& kept_;
  T* y_;
  const Widths widths_;
  chunked::Scratch<T> scratch_;
  T *rows_, *transposed_;  // rows of q and k; those of k, transposed
  T* read_;                // y, and behind it exp(s) * (K S)
  T *x_, *u_, *P_, *W_, *beta_;
  T* state_;  // S [widths.K, widths.V]
  ChunkDecay<T> decay_;
};

}  // namespace

template <typename T>
void delta_forward(const DeltaInputs<T>& in, const std::vector<Span>& spans, T* y, T* last,
                   const DeltaKept<T>& kept) {
  const int64_t H = in.k.H;
  const std::vector<int64_t> first_blocks = blocks_before(spans);
  chunked::run_tasks(static_cast<int64_t>(spans.size()) * H, work_of(in, 4), [&](int64_t task) {
    const auto span = static_cast<size_t>(task / H);
    Forward<T>(in, kept, y).run(spans[span], task % H, first_blocks[span], last);
  });
}

template void delta_forward<float>(const DeltaInputs<float>&, const std::vector<Span>&, float*,
                                   float*, const DeltaKept<float>&);
template void delta_forward<double>(const DeltaInputs<double>&, const std::vector<Span>&, double*,
                                    double*, const DeltaKept<double>&);

}  // namespace linnet::delta
