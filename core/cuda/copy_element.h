// Elements of any dtype, by their size: one kernel copies them all.
#pragma once

#include "core/cuda/kernel.h"

namespace linnet::cuda {

template <typename Bits>
__device__ __forceinline__ void copy_bits(const void* from, int64_t i, void* to, int64_t j) {
  static_cast<Bits*>(to)[j] = from == nullptr ? Bits{0} : static_cast<const Bits*>(from)[i];
}

// to[j] = from[i], elements of 1, 2, 4 or 8 bytes; 0 where `from` is null.
__device__ __forceinline__ void copy_element(size_t size, const void* from, int64_t i, void* to,
                                             int64_t j) {
  switch (size) {
    case 1:
      return copy_bits<uint8_t>(from, i, to, j);
    case 2:
      return copy_bits<uint16_t>(from, i, to, j);
    case 4:
      return copy_bits<uint32_t>(from, i, to, j);
    default:
      return copy_bits<uint64_t>(from, i, to, j);
  }
}

}  // namespace linnet::cuda
