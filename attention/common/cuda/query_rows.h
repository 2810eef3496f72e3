// Numbers of single queries: a function that the CPU and the device share, and kernels.
#pragma once

#include "core/tensor.h"

namespace linnet {

// See row_numbers in attention/common/query_rows.cpp.
struct RowNumbers {
  int64_t n, H, rest;
  const int32_t* places;  // [B,H,n]
  const uint8_t* mask;    // [B,n], or null: all valid

  constexpr int32_t number(int64_t i) const {
    const int64_t h = i % H, token = i / H;
    if (mask != nullptr && mask[token] == 0) return -1;
    const int64_t place = places[(token / n * H + h) * n + token % n];
    const int64_t read = place < 0 ? rest : place;
    return read < 0 ? -1 : static_cast<int32_t>(read * H + h);
  }
};

namespace cuda {

// ranks i32 [B,H,T], filled with -1 before, of active i32 [B,H,u].
void rank_chosen(const Tensor& active, const Tensor& ranks);
// numbers i32 [B,n H]; the rule's pointers are device memory.
void number_rows(const RowNumbers& rule, const Tensor& numbers);

}  // namespace cuda
}  // namespace linnet
