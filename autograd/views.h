// Which elements of its operands an element of a result comes from: strides without copies, for the
// CPU and for kernels.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "core/threads.h"

namespace linnet {

inline constexpr int kMaxViewRank = 6;

// N operands read in the row-major order of one shape: element i is element offset(n, i) of operand
// n. A stride of 0 repeats an operand. Plain data, which kernels take by value.
template <int N>
struct Views {
  int rank = 1;
  int64_t sizes[kMaxViewRank] = {1};
  int64_t strides[N][kMaxViewRank] = {};

  constexpr int64_t offset(int operand, int64_t i) const {
    int64_t at = 0;
    // To the constant: kernels then keep the arrays out of local memory.
    for (int d = kMaxViewRank - 1; d > 0; --d) {
      if (d >= rank) continue;
      at += i % sizes[d] * strides[operand][d];
      i /= sizes[d];
    }
    return at + i * strides[operand][0];
  }
  constexpr int64_t elements() const {
    int64_t count = 1;
    for (int d = 0; d < rank; ++d) count *= sizes[d];
    return count;
  }
  // Elements of the last dimension, along which operand n moves by step(n).
  constexpr int64_t run() const { return sizes[rank - 1]; }
  constexpr int64_t step(int operand) const { return strides[operand][rank - 1]; }
};

// Strides of a contiguous tensor.
std::vector<int64_t> strides_of(const Shape& shape);
// The same of a tensor repeated to a shape of at least its rank, as NumPy broadcasts: 0 where its
// size is 1 or missing. Throws Error where `shape` does not fit.
std::vector<int64_t> strides_in(const Shape& operand, const Shape& shape);
// The shape of which both can be parts. Throws Error, naming `what`, when there is none.
Shape broadcast_shape(const Shape& a, const Shape& b, const char* what);
// A dimension counted from the front; negative ones count from the back. Throws Error, naming
// `what`, when x has no such dimension.
int64_t dimension_of(const Shape& shape, int64_t dimension, const char* what);

// Calls body with an integer of the size of an element: copies need no arithmetic.
template <typename Body>
void dispatch_size(const Tensor& x, const Body& body) {
  switch (size_of(x.dtype())) {
    case 2:
      return body(uint16_t{});
    case 4:
      return body(uint32_t{});
    case 8:
      return body(uint64_t{});
    default:
      return body(uint8_t{});
  }
}

// Views of `sizes` with these strides, dimensions that lie together merged. Throws Error when more
// than kMaxViewRank are left.
template <int N>
Views<N> make_views(std::span<const int64_t> sizes,
                    const std::array<std::vector<int64_t>, N>& strides) {
  Views<N> views;
  views.rank = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1) continue;
    const int last = views.rank - 1;
    bool together = last >= 0;
    for (size_t n = 0; n < N && together; ++n) {
      together = views.strides[n][last] == strides[n][d] * sizes[d];
    }
    if (!together) {
      require(views.rank < kMaxViewRank, "a view of ", sizes.size(),
              " dimensions does not reduce to ", kMaxViewRank,
              ": reshape to fewer dimensions first");
      ++views.rank;
      views.sizes[views.rank - 1] = 1;
    }
    views.sizes[views.rank - 1] *= sizes[d];
    for (size_t n = 0; n < N; ++n) views.strides[n][views.rank - 1] = strides[n][d];
  }
  if (views.rank == 0) {
    views = {};
    for (auto& stride : views.strides) stride[0] = 1;
  }
  return views;
}

// Calls body(first, count, offsets) for the runs of the views on all threads: elements [first,
// first + count) of the result, the first of them at `offsets` of the operands.
template <int N, typename Body>
void for_runs(const Views<N>& views, const Body& body) {
  constexpr int64_t kGrain = 16384, kLongest = 65536;
  // A long run is cut, so that threads share it.
  const int64_t parts = (views.run() + kLongest - 1) / kLongest;
  const int64_t runs = views.run() == 0 ? 0 : views.elements() / views.run();
  const int64_t length = std::min(std::max<int64_t>(views.run(), 1), kLongest);
  parallel_for(runs * parts, std::max<int64_t>(1, kGrain / length),
               [&](int64_t begin, int64_t end) {
                 for (int64_t item = begin; item < end; ++item) {
                   const int64_t skipped = item % parts * kLongest;
                   const int64_t first = item / parts * views.run() + skipped;
                   std::array<int64_t, N> offsets;
                   for (int n = 0; n < N; ++n)
                     offsets[static_cast<size_t>(n)] = views.offset(n, first);
                   body(first, std::min(kLongest, views.run() - skipped), offsets);
                 }
               });
}

}  // namespace linnet
