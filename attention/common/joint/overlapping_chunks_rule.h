// Chunks that overlap, as functions that the CPU and the device share.
#pragma once

#include <cstdint>

namespace linnet::overlapping_chunks_rule {

// Chunk c of a row of `tokens` holds the tokens [c size - overlap, (c + 1) size + overlap), those
// outside of the row being zeros. A token has `width` numbers.
struct Rows {
  int64_t tokens, size, overlap, chunks, width;

  constexpr int64_t length() const { return size + 2 * overlap; }

  // Element i of the rows [B chunks,length,width] of x [B,tokens,width].
  template <typename T>
  constexpr T element(const T* x, int64_t i) const {
    const int64_t row = i / width / length();
    const int64_t t = row % chunks * size - overlap + i / width % length();
    if (t < 0 || t >= tokens) return T{0};
    return x[(row / chunks * tokens + t) * width + i % width];
  }
  // Element i of dx [B,tokens,width]: the sum over the chunks that hold its token.
  template <typename T>
  constexpr T gradient(const T* drows, int64_t i) const {
    const int64_t t = i / width % tokens, b = i / width / tokens;
    const int64_t last = (t + overlap) / size, after = t + overlap - length();
    T total = 0;
    for (int64_t c = after < 0 ? 0 : after / size + 1; c <= last && c < chunks; ++c) {
      const int64_t place = t + overlap - c * size;
      total += drows[((b * chunks + c) * length() + place) * width + i % width];
    }
    return total;
  }
};

}  // namespace linnet::overlapping_chunks_rule
