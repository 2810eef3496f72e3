// Distances of the places of lists: a function that the CPU and the device share, and its kernel.
#pragma once

#include "attention/common/joint/key_lists.h"

namespace linnet {

// For lists of kind `block` with positions that begin at rule.begin(), or at each document.
struct PlaceDistances {
  KeyLists rule;
  int64_t tokens;
  const int32_t* documents;  // [rows,tokens], or null

  // The number of the distance of item (row, token, place).
  constexpr int32_t number(int64_t i) const {
    const int64_t place = i % rule.length, token = i / rule.length, t = token % tokens;
    const int64_t position = documents == nullptr ? rule.begin() + t : t - documents[token];
    return static_cast<int32_t>(rule.size - 1 - position % rule.size + place);
  }
};

namespace cuda {

// index i32 of every item; the pointer is device memory.
void number_distances(const PlaceDistances& distances, const Tensor& index);

}  // namespace cuda
}  // namespace linnet
