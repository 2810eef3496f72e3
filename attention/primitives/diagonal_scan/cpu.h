// Diagonal recurrences on plain arrays of the CPU; internal to diagonal_scan.
#pragma once

#include "attention/primitives/diagonal_scan/modes.h"

namespace linnet::diagonal {

// modes [H,M,4]: pole and gain. d and state may be null. T: float or double.
template <typename T>
struct DiagonalScanInputs {
  Scan scan;
  const double* modes = nullptr;
  const T *u = nullptr, *c = nullptr, *d = nullptr, *state = nullptr;
};

// Overwritten; null ones of no interest are left out.
template <typename T>
struct DiagonalScanGradients {
  T* du = nullptr;           // [B,T,H]
  double* dmodes = nullptr;  // [H,M,4]
  T *dc = nullptr, *dd = nullptr, *dstate = nullptr;
};

// y [B,T,G,H], last [B,H,M,2].
template <typename T>
void scan_forward(const DiagonalScanInputs<T>& in, T* y, T* last);
// The gradients of sum(y * dy) + sum(last * dlast); dlast may be null.
template <typename T>
void scan_backward(const DiagonalScanInputs<T>& in, const T* dy, const T* dlast,
                   const DiagonalScanGradients<T>& to);

}  // namespace linnet::diagonal
