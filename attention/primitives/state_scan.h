// A state that every token of a tile writes to and reads from, walked along the tokens while its
// blocks lie in registers. Next to products of whole tiles there are no triangles, nothing is
// transposed, and all multiply-adds run as fast as registers take them: an update and a read of
// rows x columns each for every token. For kernels only.
#pragma once

#include <cstdint>

#include "attention/primitives/tile_gemm.h"

namespace linnet {

// Row t of a tile at data + t * stride.
template <typename T>
struct TileRows {
  const T* data;
  int64_t stride;
};

// In which order a scan takes the tokens of its tile.
enum class ScanOrder : uint8_t { forward, backward };

// What the state is multiplied by before the first token and after the last one: a factor for every
// row of it, or for every column.
template <typename T>
struct ScanFactors {
  const T* before;
  const T* after;
  bool of_rows;
};

// For the n tokens t in that order: state += x_t y_t^T, then out_t = z_t^T state, added to what out
// held where `write` says so. state [rows, columns] dense, x and z [n, rows], y and out
// [n, columns]; rows and columns are multiples of chunked::kBlock. Every sum is made in the same
// order whatever n is.
template <typename T>
void state_scan(ScanOrder order, int64_t n, int64_t rows, int64_t columns, TileRows<T> x,
                TileRows<T> y, TileRows<T> z, ScanFactors<T> factors, T* state, Write write, T* out,
                int64_t out_stride);

}  // namespace linnet
