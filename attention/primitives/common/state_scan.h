// A state that every token of a tile writes to and reads from, scanned along the tokens while its
// blocks lie in registers. Next to products of whole tiles there are no triangles, nothing is
// transposed, and all multiply-adds run as fast as registers take them: an update and a read of
// rows x columns each for every token. For kernels only.
#pragma once

#include <cstdint>

#include "attention/primitives/common/tile_gemm.h"

namespace linnet {

// Row t of a tile at data + t * stride. While it uses row t, the scan prefetches row t + ahead (0:
// nothing) or, where `prefetch` is not null because rows are read from or written to another place
// than the tile, as much at prefetch + t * prefetch_stride. Addresses past an array are harmless.
template <typename E>
struct TileRows {
  E* data;
  int64_t stride;
  int64_t ahead = 0;
  const E* prefetch = nullptr;
  int64_t prefetch_stride = 0;
};

// In which order a scan takes the tokens of its tile.
enum class ScanOrder : uint8_t { forward, backward };

// Whether tokens are added to the state one by one, the same sums however a sequence is split into
// tiles, or those of a tile to each other first: no digits are lost to a state that has become
// large, for an addition (no multiply-add) more.
enum class ScanSums : uint8_t { running, of_tile };

// Factors of a decaying state, one of each row (or each column) per token: token t's are at
// factors + t * stride. Null: nothing decays.
template <typename T>
struct ScanDecay {
  const T* factors = nullptr;
  int64_t stride = 0;
  bool of_columns = false;
};

// For the n tokens t in that order: state += x_t y_t^T, then out_t = z_t^T state, added to out
// where `write` says so. state [rows, columns] dense, x and z [n, rows], y and out [n, columns];
// rows and columns are multiples of chunked::kBlock. Where the state decays, it is multiplied by
// token t's factors before t is added, in the backward order after t is read; sums are running.
template <typename T>
void state_scan(ScanOrder order, int64_t n, int64_t rows, int64_t columns, TileRows<const T> x,
                TileRows<const T> y, TileRows<const T> z, T* state, Write write, TileRows<T> out,
                ScanSums sums = ScanSums::running, ScanDecay<T> decay = {});

}  // namespace linnet
