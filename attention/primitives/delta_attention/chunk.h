// What forward and backward of the delta rule share: the rows of a chunk, the factors of its decay,
// and its triangular system. Internal to this folder.
//
// A chunk of n tokens that begins with the state S, in the WY form of Yang et al. 2024: with s_i
// the sum of the chunk's log-decays up to token i, D_ij = exp(s_i - s_j) for j <= i and 0 above,
//
//   P = strictly lower part of K K^T * D,   W = Q K^T * D
//   X_i = v_i - exp(s_i) S^T k_i - sum_{j < i} P_ij U_j,   U_i = beta_i X_i
//   Y = exp(s) * (Q S) + W U,   S' = exp(s_last) S + (exp(s_last - s) * K)^T U
#pragma once

#include <cstdint>

#include "attention/primitives/common/chunked.h"
#include "attention/primitives/delta_attention/cpu.h"

namespace linnet::delta {

// Tokens that are computed at once: more make larger triangles, fewer pass over the state more
// often.
inline constexpr int64_t kChunk = 32;
// Tokens between the states that forward keeps.
inline constexpr int64_t kBlock = 256;
static_assert(kBlock % kChunk == 0 && kChunk % chunked::kBlock == 0);

// The sizes of rows in scratch, padded with zeros.
struct Widths {
  int64_t K, V;
  template <typename T>
  explicit Widths(const DeltaInputs<T>& in)
      : K(chunked::padded(in.k.K)), V(chunked::padded(in.v.K)) {}
};

// One head's tokens t ... t + n - 1 of a row.
struct Tokens {
  int64_t row, t, n, head;
};

// Index of the first of them in an array [B,T,H]; the next ones follow at distance H.
template <typename T>
int64_t first_index(const DeltaInputs<T>& in, const Tokens& at) {
  return (at.row * in.k.T + at.t) * in.k.H + at.head;
}
template <typename T>
void load(const DeltaInputs<T>& in, const SequenceView<const T>& view, const Tokens& at, T* rows,
          int64_t stride) {
  chunked::load_rows(view, in.key_mask, at.row, at.t, at.n, at.head, rows, stride);
}
// beta of each token, 0 where masked.
template <typename T>
void load_beta(const DeltaInputs<T>& in, const Tokens& at, T* beta);

// The factors of a chunk's decay. Everything is exp of a difference of sums that is at most 0; sums
// are made in double, so that differences keep their digits. Without log_decay nothing is scaled.
template <typename T>
class ChunkDecay {
 public:
  void load(const DeltaInputs<T>& in, const Tokens& at);
  bool active() const { return active_; }
  // weights [n, kChunk], zeros above the diagonal, times D.
  void scale_triangle(T* weights) const;
  // rows[i] *= exp(s_i).
  void scale_since_start(T* rows, int64_t stride) const { scale_rows(since_start_, rows, stride); }
  // rows[i] *= exp(s_last - s_i).
  void scale_until_end(T* rows, int64_t stride) const { scale_rows(until_end_, rows, stride); }
  // The state, on its way through the chunk.
  void scale_state(T* state, int64_t count) const;

 private:
  void scale_rows(const T* factors, T* rows, int64_t stride) const;

  bool active_ = false;
  int64_t n_ = 0;
  T since_start_[kChunk], until_end_[kChunk], between_[kChunk * kChunk];
};

// P and W [n, kChunk] from rows q and k; `transposed` [widths.K, kChunk] is work memory.
template <typename T>
void make_triangles(const Widths& widths, const ChunkDecay<T>& decay, int64_t n, const T* q,
                    const T* k, T* transposed, T* P, T* W);
// What is on the diagonal of a triangle [n, kChunk] becomes 0.
template <typename T>
void clear_diagonal(int64_t n, T* triangle);

// x_i -= sum_{j < i} P_ij u_j with u_i = beta_i x_i, in order of i; rows of `width` elements.
template <typename T>
void solve(int64_t n, int64_t width, const T* P, const T* beta, T* x, T* u);
// x_j += sum_{i > j} P_ij u_i with u_j = -beta_j x_j, from the last j to the first.
template <typename T>
void solve_transposed(int64_t n, int64_t width, const T* P, const T* beta, T* x, T* u);

// The number of blocks in all spans before each one.
std::vector<int64_t> blocks_before(const std::vector<Span>& spans);

// Multiply-adds by which a call is divided among threads.
template <typename T>
double work_of(const DeltaInputs<T>& in, int passes) {
  return static_cast<double>(passes * in.k.B * in.k.T * in.k.H * in.k.K * in.v.K);
}

}  // namespace linnet::delta
