// The delta rule backward. Blocks from the last to the first: a scan forward recomputes S before
// each chunk from the state that forward kept, then the chunks are taken from the last to the
// first. With G the gradient of the state after a chunk, and the names of chunk.h,
//
//   dU = exp(s_last - s) * (K G) + W^T dY,   (I + P^T beta) dX = dU,   N = -beta dX
//   dv = -N,   dbeta_i = dX_i . X_i,   dW = dY U^T * D,   dP = N U^T * D below the diagonal
//   dQ = exp(s) * (dY S^T) + dW K
//   dK = exp(s) * (N S^T) + dW^T Q + (dP + dP^T) K + exp(s_last - s) * (U G^T)
//   dS = exp(s_last) G + (exp(s) * Q)^T dY + (exp(s) * K)^T N
//
// The gradient of a log-decay is that of everything that it scales, <a_t S_{t-1}, dS> before token
// t. This sum changes from token to token by v_t . dv_t - y_t . dy_t, and begins each chunk with
// <S, dS>, so that no rounding of other chunks is in it.
#include <algorithm>

#include "attention/primitives/common/simd.h"
#include "attention/primitives/delta_attention/chunk.h"

namespace linnet::delta {
namespace {

template <typename T>
class Backward {
 public:
  Backward(const DeltaInputs<T>& in, const DeltaKept<T>& kept, const T* y, const T* dy,
           const DeltaGradients<T>& to)
      : in_(in),
        kept_(kept),
        corrections_(kept.corrections, in.v.B, in.v.T, in.v.H, in.v.K),
        y_(y, in.v.B, in.v.T, in.v.H, in.v.K),
        dy_(dy, in.v.B, in.v.T, in.v.H, in.v.K),
        to_(to),
        widths_(in),
        size_(widths_.K * widths_.V),
        rows_(scratch_.take(2 * kChunk * widths_.K)),
        drows_(scratch_.take(2 * kChunk * widths_.K)),
        transposed_(scratch_.take(std::max(widths_.K, widths_.V) * kChunk)),
        reads_(scratch_.take(2 * kChunk * widths_.V)),
        x_(scratch_.take(kChunk * widths_.V)),
        u_(scratch_.take(kChunk * widths_.V)),
        dx_(scratch_.take(kChunk * widths_.V)),
        other_(scratch_.take(kChunk * widths_.V)),
        P_(scratch_.take(kChunk * kChunk)),
        W_(scratch_.take(kChunk * kChunk)),
        beta_(scratch_.take(kChunk)),
        G_(scratch_.take(size_)),
        G_transposed_(scratch_.take(size_)),
        states_(scratch_.take(kBlock / kChunk * size_)) {}

  void run(const Span& span, int64_t head, int64_t first_block, const T* dlast) {
    const int64_t K = in_.k.K, V = in_.v.K, place = (span.row * in_.k.H + head) * K * V;
    std::fill_n(G_, size_, T(0));
    for (int64_t r = 0; span.carries_out && dlast != nullptr && r < K; ++r) {
      std::copy_n(dlast + place + r * V, V, G_ + r * widths_.V);
    }
    transpose_gradient();
    for (int64_t block = (span.end - span.begin - 1) / kBlock; block >= 0; --block) {
      const int64_t begin = span.begin + block * kBlock, end = std::min(span.end, begin + kBlock);
      if (begin >= end) break;
      const int64_t kept = (first_block + block) * in_.k.H + head;
      chunked::transpose(kept_.states + kept * size_, widths_.V, widths_.K, widths_.V, states_,
                         widths_.K);
      const auto tokens = [&](int64_t t) {
        return Tokens{span.row, t, std::min(kChunk, end - t), head};
      };
      T* state = states_;
      for (int64_t t = begin; t + kChunk < end; t += kChunk, state += size_) {
        advance(tokens(t), state);
      }
      for (; state >= states_; state -= size_) {
        chunk(tokens(begin + (state - states_) / size_ * kChunk), state);
      }
    }
    for (int64_t r = 0; span.carries_in && to_.state != nullptr && r < K; ++r) {
      std::copy_n(G_ + r * widths_.V, V, to_.state + place + r * V);
    }
  }

 private:
  void transpose_gradient() {
    chunked::transpose(G_, widths_.V, widths_.K, widths_.V, G_transposed_, widths_.K);
  }

  void load_corrections(const Tokens& at) {
    load(in_, corrections_, at, x_, widths_.V);
    load_beta(in_, at, beta_);
    for (int64_t i = 0; i < at.n; ++i) {
      for (int64_t c = 0; c < widths_.V; ++c) {
        u_[i * widths_.V + c] = beta_[i] * x_[i * widths_.V + c];
      }
    }
  }

  // From `state`, S^T before these tokens, the one behind it, S^T after them.
  void advance(const Tokens& at, T* state) {
    const int64_t Kp = widths_.K, Vp = widths_.V;
    load_corrections(at);
    load(in_, in_.k, at, rows_, Kp);
    decay_.load(in_, at);
    decay_.scale_until_end(rows_, Kp);
    T* next = state + size_;
    if (decay_.active()) {
      std::copy_n(state, size_, next);
      decay_.scale_state(next, size_);
      state = next;
    }
    add_product<T>(Vp, Kp, at.n, {u_, Vp, true}, rows_, Kp, state, next, Kp);
  }

  void chunk(const Tokens& at, const T* state) {
    const int64_t n = at.n, Kp = widths_.K, Vp = widths_.V;
    // Two blocks of n rows each, one behind the other: q and k, dY and N, dQ and dK.
    T *q = rows_, *k = rows_ + n * Kp, *dY = reads_, *N = reads_ + n * Vp;
    T *dq = drows_, *dk = drows_ + n * Kp;
    load(in_, in_.q, at, q, Kp);
    load(in_, in_.k, at, k, Kp);
    load(in_, dy_, at, dY, Vp);
    load_corrections(at);
    decay_.load(in_, at);
    const auto scale = static_cast<T>(in_.query_scale);
    for (int64_t i = 0; i < n * Kp; ++i) q[i] *= scale;
    make_triangles(widths_, decay_, n, q, k, transposed_, P_, W_);

    tile_gemm<T>(n, Vp, Kp, T(1), {k, Kp}, {G_, Vp}, Write::overwrite, dx_, Vp);
    decay_.scale_until_end(dx_, Vp);
    add_triangle_times<T>(n, Vp, {W_, kChunk, true}, dY, Vp, dx_, Vp);
    solve_transposed(n, Vp, P_, beta_, dx_, N);
    store_beta(at);
    store(at, N, Vp, T(-1), to_.v);

    // P and W become their gradients.
    std::fill(u_ + n * Vp, u_ + chunked::padded(n) * Vp, T(0));
    chunked::transpose(u_, Vp, chunked::padded(n), Vp, transposed_, kChunk);
    chunked::lower_product(n, Vp, N, Vp, transposed_, kChunk, P_, kChunk);
    chunked::lower_product(n, Vp, dY, Vp, transposed_, kChunk, W_, kChunk);
    decay_.scale_triangle(P_);
    decay_.scale_triangle(W_);
    clear_diagonal(n, P_);

    tile_gemm<T>(2 * n, Kp, Vp, T(1), {reads_, Vp}, {state, Kp}, Write::overwrite, drows_, Kp);
    decay_.scale_since_start(dq, Kp);
    decay_.scale_since_start(dk, Kp);
    add_triangle_times<T>(n, Kp, {W_, kChunk}, k, Kp, dq, Kp);
    add_triangle_times<T>(n, Kp, {W_, kChunk, true}, q, Kp, dk, Kp);
    add_triangle_times<T>(n, Kp, {P_, kChunk}, k, Kp, dk, Kp);
    add_triangle_times<T>(n, Kp, {P_, kChunk, true}, k, Kp, dk, Kp);
    decay_.scale_until_end(u_, Vp);
    tile_gemm<T>(n, Kp, Vp, T(1), {u_, Vp}, {G_transposed_, Kp}, Write::accumulate, dk, Kp);
    store(at, dq, Kp, scale, to_.q);
    store(at, dk, Kp, T(1), to_.k);

    decay_.scale_since_start(q, Kp);
    decay_.scale_since_start(k, Kp);
    decay_.scale_state(G_, size_);
    tile_gemm<T>(Kp, Vp, 2 * n, T(1), {rows_, Kp, true}, {reads_, Vp}, Write::accumulate, G_, Vp);
    transpose_gradient();
    if (to_.log_decay != nullptr) store_log_decay(at, dY, N, dot_row(state, G_transposed_, size_));
  }

  void store_beta(const Tokens& at) const {
    T* to = to_.beta + first_index(in_, at);
    for (int64_t i = 0; i < at.n; ++i) {
      to[i * in_.k.H] = dot_row(dx_ + i * widths_.V, x_ + i * widths_.V, widths_.V);
    }
  }

  // `sum` is that before the chunk.
  void store_log_decay(const Tokens& at, const T* dY, const T* N, T sum_before) {
    const int64_t Vp = widths_.V;
    load(in_, in_.v, at, x_, Vp);
    load(in_, y_, at, other_, Vp);
    T* to = to_.log_decay + first_index(in_, at);
    auto sum = static_cast<double>(sum_before);
    for (int64_t i = 0; i < at.n; ++i) {
      const bool valid = is_valid(in_.key_mask, at.row, at.t + i, in_.k.T);
      to[i * in_.k.H] = valid ? static_cast<T>(sum) : T(0);
      sum -= static_cast<double>(dot_row(x_ + i * Vp, N + i * Vp, Vp));
      sum -= static_cast<double>(dot_row(other_ + i * Vp, dY + i * Vp, Vp));
    }
  }

  void store(const Tokens& at, T* rows, int64_t stride, T factor, const SequenceView<T>& to) const {
    for (int64_t i = 0; i < at.n; ++i) {
      T* out = to.at(at.row, at.t + i, at.head);
      const T* row = rows + i * stride;
      for (int64_t c = 0; c < to.K; ++c) out[c] = factor * row[c];
    }
  }

  const DeltaInputs<T>& in_;
  const DeltaKept<T>& kept_;
  const SequenceView<const T> corrections_, y_, dy_;
  const DeltaGradients<T>& to_;
  const Widths widths_;
  const int64_t size_;  // of a state
  chunked::Scratch<T> scratch_;
  T *rows_, *drows_, *transposed_, *reads_;
  T *x_, *u_, *dx_, *other_, *P_, *W_, *beta_;
  T *G_, *G_transposed_;
  T* states_;  // S^T before each chunk of the block
  ChunkDecay<T> decay_;
};

}  // namespace

template <typename T>
void delta_backward(const DeltaInputs<T>& in, const std::vector<Span>& spans,
                    const DeltaKept<T>& kept, const T* y, const T* dy, const T* dlast,
                    const DeltaGradients<T>& to) {
  const int64_t H = in.k.H;
  const std::vector<int64_t> first_blocks = blocks_before(spans);
  chunked::run_tasks(static_cast<int64_t>(spans.size()) * H, work_of(in, 10), [&](int64_t task) {
    const auto span = static_cast<size_t>(task / H);
    Backward<T>(in, kept, y, dy, to).run(spans[span], task % H, first_blocks[span], dlast);
  });
}

#define LINNET_INSTANTIATE(T)                                                        \
  template void delta_backward<T>(const DeltaInputs<T>&, const std::vector<Span>&,   \
                                  const DeltaKept<T>&, const T*, const T*, const T*, \
                                  const DeltaGradients<T>&);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet::delta
