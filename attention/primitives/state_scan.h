// A state that every token of a tile writes to and reads from, walked along the tokens while its
// blocks lie in registers. Next to products of whole tiles there are no triangles, nothing is
// transposed, and all multiply-adds run as fast as registers take them: an update and a read of
// rows x columns each for every token. For kernels only.
#pragma once

#include <cstdint>

#include "attention/primitives/tile_gemm.h"

namespace linnet {

// Row t of a tile at data + t * stride. The scan asks memory for row t + ahead while it uses row t
// (0: nothing to ask for); rows that do not exist may be asked for.
template <typename E>
struct TileRows {
  E* data;
  int64_t stride;
  int64_t ahead = 0;
};

// In which order a scan takes the tokens of its tile.
enum class ScanOrder : uint8_t { forward, backward };

// For the n tokens t in that order: state += x_t y_t^T, then out_t = z_t^T state, added to what out
// held where `write` says so. state [rows, columns] dense, x and z [n, rows], y and out
// [n, columns]; rows and columns are multiples of chunked::kBlock. Every sum is made in the same
// order whatever n is.
template <typename T>
void state_scan(ScanOrder order, int64_t n, int64_t rows, int64_t columns, TileRows<const T> x,
                TileRows<const T> y, TileRows<const T> z, T* state, Write write, TileRows<T> out);

}  // namespace linnet
