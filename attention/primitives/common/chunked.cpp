// Scratch memory, span splitting, padded tiles and triangular products of the chunked kernels.
#include "attention/primitives/common/chunked.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "attention/primitives/common/simd.h"
#include "core/threads.h"

namespace linnet::chunked {
namespace {

constexpr size_t kAlignment = 64;
// Below this many multiply-adds a job is done before other threads have woken up.
constexpr double kSerialWork = 2e5;

struct Free {
  void operator()(void* p) const { std::free(p); }
};
struct Buffer {
  std::unique_ptr<void, Free> memory;
  int64_t bytes = 0;
};

Buffer& buffer(size_t number) {
  thread_local std::vector<Buffer> buffers;
  if (number >= buffers.size()) buffers.resize(number + 1);
  return buffers[number];
}

}  // namespace

template <typename T>
T* Scratch<T>::take(int64_t count) {
  Buffer& p = buffer(next_++);
  const int64_t bytes = (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
  if (bytes > p.bytes) {
    p.memory.reset();
    p.bytes = 0;
    p.memory.reset(std::aligned_alloc(kAlignment, static_cast<size_t>(bytes)));
    if (p.memory == nullptr) throw std::bad_alloc();
    p.bytes = bytes;
  }
  return static_cast<T*>(p.memory.get());
}

std::vector<Split> split_spans(const std::vector<Span>& spans, int64_t heads, int threads,
                               int64_t unit) {
  int64_t total = 0, longest = 0;
  for (const Span& span : spans) {
    total += span.end - span.begin;
    longest = std::max(longest, span.end - span.begin);
  }
  // Splitting costs a second pass over the keys, so it waits until one span would hold up the rest.
  int64_t limit = std::max<int64_t>(longest, 1);
  const int64_t share = (total * heads + threads - 1) / threads;
  if (threads > 1 && longest > share) {
    limit = (std::max(4 * kChunk, share / 2) + unit - 1) / unit * unit;
  }
  std::vector<Split> splits;
  for (size_t s = 0; s < spans.size(); ++s) {
    const int64_t length = spans[s].end - spans[s].begin;
    const int64_t count = std::max<int64_t>(1, (length + limit - 1) / limit);
    const int64_t first = static_cast<int64_t>(splits.size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = spans[s].begin + i * limit;
      splits.push_back(
          {static_cast<int64_t>(s), begin, std::min(spans[s].end, begin + limit), i, count, first});
    }
  }
  return splits;
}

void run_tasks(int64_t count, double work, const std::function<void(int64_t)>& body) {
  if (work < kSerialWork) {
    for (int64_t task = 0; task < count; ++task) body(task);
    return;
  }
  parallel_tasks(count, 1, [&body] { return [&body](int64_t task) { body(task); }; });
}

template <typename T>
void load_rows(const SequenceView<const T>& view, const uint8_t* mask, int64_t b, int64_t t,
               int64_t n, int64_t h, T* out, int64_t stride) {
  for (int64_t i = 0; i < n; ++i) {
    T* row = out + i * stride;
    prefetch(view, b, t + i, h);
    if (is_valid(mask, b, t + i, view.T)) {
      simd::copy(view.at(b, t + i, h), view.K, row);
      std::fill(row + view.K, row + stride, T(0));
    } else {
      std::fill_n(row, stride, T(0));
    }
  }
  std::fill(out + n * stride, out + padded(n) * stride, T(0));
}

template <typename T>
void transpose(const T* in, int64_t in_stride, int64_t rows, int64_t columns, T* out,
               int64_t out_stride) {
  constexpr int64_t kLane = simd::kLanes<T>;
  for (int64_t i = 0; i < rows; i += kLane) {
    for (int64_t j = 0; j < columns; j += kLane) {
      const T* from = in + i * in_stride + j;
      T* to = out + j * out_stride + i;
      if (i + kLane <= rows && j + kLane <= columns) {
        simd::transpose_square(from, in_stride, to, out_stride);
        continue;
      }
      for (int64_t r = 0; r < std::min(kLane, rows - i); ++r) {
        for (int64_t c = 0; c < std::min(kLane, columns - j); ++c) {
          to[c * out_stride + r] = from[r * in_stride + c];
        }
      }
    }
  }
}

template <typename T>
void lower_product(int64_t n, int64_t depth, const T* a, int64_t a_stride, const T* b,
                   int64_t b_stride, T* out, int64_t out_stride, const T* offsets) {
  constexpr int64_t kLane = simd::kLanes<T>;
  const Write write = offsets == nullptr ? Write::overwrite : Write::accumulate;
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t rows = std::min(kBlock, n - i), columns = i + kBlock;
    for (int64_t r = i; offsets != nullptr && r < i + rows; ++r) {
      std::fill_n(out + r * out_stride, columns, offsets[r]);
    }
    tile_gemm<T>(rows, columns, depth, T(1), {a + i * a_stride, a_stride}, {b, b_stride}, write,
                 out + i * out_stride, out_stride);
    for (int64_t r = 0; r < rows; ++r) {
      T* row = out + (i + r) * out_stride;
      for (int64_t c = i; c < columns; c += kLane) {
        simd::store(row + c, simd::first_lanes<T>(simd::load(row + c), i + r + 1 - c));
      }
      std::fill(row + columns, row + padded(n), T(0));
    }
  }
}

#define LINNET_INSTANTIATE(T)                                                                \
  template class Scratch<T>;                                                                 \
  template void load_rows<T>(const SequenceView<const T>&, const uint8_t*, int64_t, int64_t, \
                             int64_t, int64_t, T*, int64_t);                                 \
  template void transpose<T>(const T*, int64_t, int64_t, int64_t, T*, int64_t);              \
  template void lower_product<T>(int64_t, int64_t, const T*, int64_t, const T*, int64_t, T*, \
                                 int64_t, const T*);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet::chunked
