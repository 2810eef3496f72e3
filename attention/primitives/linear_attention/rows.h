// Rows of any width as vectors. Internal to this folder.
#pragma once

#include <cstdint>

#include "attention/primitives/common/simd.h"

namespace linnet::linear_attention_detail {

using simd::kLanes;
using simd::Vector;

// Calls body(c, lanes) for every vector of a row.
template <typename T, typename Body>
[[gnu::always_inline]] inline void for_vectors(int64_t width, const Body& body) {
  int64_t c = 0;
  for (; c + kLanes<T> <= width; c += kLanes<T>) body(c, kLanes<T>);
  if (c < width) body(c, width - c);
}
template <typename T>
inline Vector<T> load(const T* p, int64_t lanes) {
  return lanes == kLanes<T> ? simd::load(p) : simd::load_partial(p, lanes);
}
template <typename T>
inline void store(T* p, Vector<T> v, int64_t lanes) {
  lanes == kLanes<T> ? simd::store(p, v) : simd::store_partial(p, v, lanes);
}

}  // namespace linnet::linear_attention_detail
