// Factors, triangles and triangular systems of a chunk of the delta rule.
#include "attention/primitives/delta_attention/chunk.h"

#include <algorithm>
#include <cmath>

#include "attention/primitives/common/simd.h"

namespace linnet::delta {
namespace {

using simd::kLanes;
using simd::Vector;

// Tokens of the triangular system whose rows stay in registers; those before them are a product.
constexpr int64_t kSolved = 8;

int64_t blocks_of(const Span& span) {
  return (span.end - span.begin + kBlock - 1) / kBlock;
}

}  // namespace

template <typename T>
int64_t kept_state_elements(const DeltaInputs<T>& in, const std::vector<Span>& spans) {
  const Widths widths(in);
  int64_t blocks = 0;
  for (const Span& span : spans) blocks += blocks_of(span);
  return blocks * in.k.H * widths.K * widths.V;
}

std::vector<int64_t> blocks_before(const std::vector<Span>& spans) {
  std::vector<int64_t> before;
  int64_t blocks = 0;
  for (const Span& span : spans) {
    before.push_back(blocks);
    blocks += blocks_of(span);
  }
  return before;
}

template <typename T>
void load_beta(const DeltaInputs<T>& in, const Tokens& at, T* beta) {
  const T* from = in.beta + first_index(in, at);
  for (int64_t i = 0; i < at.n; ++i) {
    beta[i] = is_valid(in.key_mask, at.row, at.t + i, in.k.T) ? from[i * in.k.H] : T(0);
  }
}

template <typename T>
void ChunkDecay<T>::load(const DeltaInputs<T>& in, const Tokens& at) {
  active_ = in.log_decay != nullptr;
  n_ = at.n;
  if (!active_) return;
  const T* from = in.log_decay + first_index(in, at);
  double sums[kChunk], sum = 0;
  for (int64_t i = 0; i < kChunk; ++i) {
    if (i < n_ && is_valid(in.key_mask, at.row, at.t + i, in.k.T)) {
      sum += static_cast<double>(from[i * in.k.H]);
    }
    sums[i] = sum;
  }
  for (int64_t i = 0; i < n_; ++i) {
    since_start_[i] = static_cast<T>(std::exp(sums[i]));
    until_end_[i] = static_cast<T>(std::exp(sum - sums[i]));
    T* row = between_ + i * kChunk;
    // Above the diagonal weights are zero and need no more than a finite factor.
    for (int64_t j = 0; j < kChunk; ++j) row[j] = static_cast<T>(std::min(sums[i] - sums[j], 0.0));
    for (int64_t j = 0; j < kChunk; j += kLanes<T>) {
      simd::store(row + j, simd::exp<T>(simd::load(row + j)));
    }
  }
}

template <typename T>
void ChunkDecay<T>::scale_triangle(T* weights) const {
  if (!active_) return;
  const int64_t columns = chunked::padded(n_);
  for (int64_t i = 0; i < n_; ++i) {
    for (int64_t j = 0; j < columns; ++j) weights[i * kChunk + j] *= between_[i * kChunk + j];
  }
}

template <typename T>
void ChunkDecay<T>::scale_rows(const T* factors, T* rows, int64_t stride) const {
  if (!active_) return;
  for (int64_t i = 0; i < n_; ++i) {
    for (int64_t c = 0; c < stride; ++c) rows[i * stride + c] *= factors[i];
  }
}

template <typename T>
void ChunkDecay<T>::scale_state(T* state, int64_t count) const {
  if (!active_) return;
  for (int64_t i = 0; i < count; ++i) state[i] *= since_start_[n_ - 1];
}

template <typename T>
void clear_diagonal(int64_t n, T* triangle) {
  for (int64_t i = 0; i < n; ++i) triangle[i * kChunk + i] = 0;
}

template <typename T>
void make_triangles(const Widths& widths, const ChunkDecay<T>& decay, int64_t n, const T* q,
                    const T* k, T* transposed, T* P, T* W) {
  chunked::transpose(k, widths.K, chunked::padded(n), widths.K, transposed, kChunk);
  chunked::lower_product(n, widths.K, k, widths.K, transposed, kChunk, P, kChunk);
  chunked::lower_product(n, widths.K, q, widths.K, transposed, kChunk, W, kChunk);
  decay.scale_triangle(P);
  decay.scale_triangle(W);
  clear_diagonal(n, P);
}

template <typename T>
void solve(int64_t n, int64_t width, const T* P, const T* beta, T* x, T* u) {
  for (int64_t first = 0; first < n; first += kSolved) {
    const int64_t rows = std::min(kSolved, n - first);
    tile_gemm<T>(rows, width, first, T(-1), {P + first * kChunk, kChunk}, {u, width},
                 Write::accumulate, x + first * width, width);
    count_multiply_adds(rows * (rows - 1) / 2 * width);
    for (int64_t c = 0; c < width; c += kLanes<T>) {
      Vector<T> solved[kSolved];
      for (int64_t i = 0; i < rows; ++i) {
        const T* weights = P + (first + i) * kChunk + first;
        T* at = x + (first + i) * width + c;
        Vector<T> sum = simd::load(at);
        for (int64_t j = 0; j < i; ++j) sum -= weights[j] * solved[j];
        solved[i] = beta[first + i] * sum;
        simd::store(at, sum);
        simd::store(u + (first + i) * width + c, solved[i]);
      }
    }
  }
}

template <typename T>
void solve_transposed(int64_t n, int64_t width, const T* P, const T* beta, T* x, T* u) {
  for (int64_t end = n; end > 0;) {
    const int64_t first = (end - 1) / kSolved * kSolved, rows = end - first;
    tile_gemm<T>(rows, width, n - end, T(1), {P + end * kChunk + first, kChunk, true},
                 {u + end * width, width}, Write::accumulate, x + first * width, width);
    count_multiply_adds(rows * (rows - 1) / 2 * width);
    for (int64_t c = 0; c < width; c += kLanes<T>) {
      Vector<T> solved[kSolved];
      for (int64_t j = rows - 1; j >= 0; --j) {
        T* at = x + (first + j) * width + c;
        Vector<T> sum = simd::load(at);
        for (int64_t i = j + 1; i < rows; ++i) {
          sum += P[(first + i) * kChunk + first + j] * solved[i];
        }
        solved[j] = -beta[first + j] * sum;
        simd::store(at, sum);
        simd::store(u + (first + j) * width + c, solved[j]);
      }
    }
    end = first;
  }
}

#define LINNET_INSTANTIATE(T)                                                               \
  template int64_t kept_state_elements<T>(const DeltaInputs<T>&, const std::vector<Span>&); \
  template void load_beta<T>(const DeltaInputs<T>&, const Tokens&, T*);                     \
  template class ChunkDecay<T>;                                                             \
  template void clear_diagonal<T>(int64_t, T*);                                             \
  template void make_triangles<T>(const Widths&, const ChunkDecay<T>&, int64_t, const T*,   \
                                  const T*, T*, T*, T*);                                    \
  template void solve<T>(int64_t, int64_t, const T*, const T*, T*, T*);                     \
  template void solve_transposed<T>(int64_t, int64_t, const T*, const T*, T*, T*);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet::delta
