// Shared by the chunked kernels: scratch memory, splitting of spans among threads, and tiles, i.e.
// row-major matrices in scratch whose rows and widths are padded with zeros to whole vectors, so
// that products never meet a partial one.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "attention/primitives/common/tile_gemm.h"
#include "core/sequence_view.h"

namespace linnet::chunked {

// Tokens processed together.
inline constexpr int64_t kChunk = 64;
// Rows and columns of the blocks by which triangular products skip their zero half.
inline constexpr int64_t kBlock = 16;

// n rounded up to a multiple of kBlock, which is a whole number of vectors of either type.
constexpr int64_t padded(int64_t n) {
  return (n + kBlock - 1) / kBlock * kBlock;
}

// Scratch memory of the calling thread, taken buffer by buffer, 64-byte aligned, kept between
// calls. Contents are undefined. One object at a time in a thread, except nested ones.
template <typename T>
class Scratch {
 public:
  Scratch() = default;
  T* take(int64_t count);
  // Takes further buffers; they may be reused after its end of life.
  Scratch nested() const { return Scratch(next_); }

 private:
  explicit Scratch(size_t next) : next_(next) {}
  size_t next_ = 0;
};

// One split of a span; a span is split where whole spans would leave threads idle.
struct Split {
  int64_t span = 0, begin = 0, end = 0;
  // This is split `index` of `count`; the span's first split is number `first` of the list.
  int64_t index = 0, count = 1, first = 0;
};

// Splits spans, each processed by `heads` independent tasks, at multiples of `unit` tokens. Depends
// only on its arguments, so that results are repeatable for a fixed number of threads.
std::vector<Split> split_spans(const std::vector<Span>& spans, int64_t heads, int threads,
                               int64_t unit = kChunk);

// Calls body(task) for every task below count on all threads; `work` is the number of
// multiply-adds of all tasks together: small jobs stay on the calling thread.
void run_tasks(int64_t count, double work, const std::function<void(int64_t)>& body);

// Prefetches row t + kAhead of a head before it is needed: rows lie H K elements apart, which
// hardware does not foresee.
inline constexpr int64_t kAhead = 12;
template <typename T>
inline void prefetch(const SequenceView<const T>& view, int64_t b, int64_t t, int64_t h) {
  if (t + kAhead >= view.T) return;
  const T* row = view.at(b, t + kAhead, h);
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t c = 0; c < view.K; c += kLine) __builtin_prefetch(row + c);
}

// Prefetches rows [begin, end) of a head, as far as they exist (for writing, where kWrite), while
// others are computed. A null view has none.
template <bool kWrite, typename E>
inline void prefetch_rows(const SequenceView<E>& view, int64_t b, int64_t begin, int64_t end,
                          int64_t h) {
  if (!view) return;
  // g++ takes a function that only prefetches for one without effects, and drops calls of it.
  asm volatile("");
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(E));
  const int64_t last = end < view.T ? end : view.T;
  for (int64_t t = begin > 0 ? begin : 0; t < last; ++t) {
    const E* row = view.at(b, t, h);
    for (int64_t c = 0; c < view.K; c += kLine) __builtin_prefetch(row + c, kWrite ? 1 : 0, 2);
  }
}

// The same for `count` values that lie side by side.
template <bool kWrite, typename T>
inline void prefetch_values(const T* from, int64_t count) {
  asm volatile("");
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(from + i, kWrite ? 1 : 0, 2);
}

// out[padded(n), stride] = rows t .. t+n-1 of head h; padding and masked tokens (mask [B,T], null:
// none) are zero, their contents never looked at. stride >= view.K.
template <typename T>
void load_rows(const SequenceView<const T>& view, const uint8_t* mask, int64_t b, int64_t t,
               int64_t n, int64_t h, T* out, int64_t stride);

// out[j, i] = in[i, j] for i < rows, j < columns. Nothing else of out is written: pass padded sizes
// where padding is read.
template <typename T>
void transpose(const T* in, int64_t in_stride, int64_t rows, int64_t columns, T* out,
               int64_t out_stride);

// out[i, j] = sum_p a[i, p] b[p, j] (+ offsets[i], where given) for j <= i < n, zero above the
// diagonal. Written are n rows of padded(n) columns. a [n, depth], b [depth, padded(n)].
template <typename T>
void lower_product(int64_t n, int64_t depth, const T* a, int64_t a_stride, const T* b,
                   int64_t b_stride, T* out, int64_t out_stride, const T* offsets = nullptr);

}  // namespace linnet::chunked
