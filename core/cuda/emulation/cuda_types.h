// CUDA's vector and bf16 types for host compilers: the toolkit's own headers where they are
// installed (they are plain C++), else the few types that linnet's kernels use, with the same
// layout and rounding.
#pragma once

#if __has_include(<cuda_bf16.h>)
#include <cuda_bf16.h>
#include <vector_functions.h>
#else
#include <bit>
#include <cmath>
#include <cstdint>

// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's own names
struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  __nv_bfloat16(float value) {  // rounds to nearest, ties to even
    const auto u = std::bit_cast<uint32_t>(value);
    bits = std::isnan(value) ? 0x7FFF : static_cast<uint16_t>((u + 0x7FFF + (u >> 16 & 1)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};
inline __nv_bfloat16 __float2bfloat16(float value) {
  return value;
}
inline float __bfloat162float(__nv_bfloat16 value) {
  return value;
}
// NOLINTEND(bugprone-reserved-identifier)
#endif
