// Tensors of a call of a diagonal recurrence, on the CPU and on a device; internal to
// diagonal_scan.
#pragma once

#include "attention/primitives/diagonal_scan/modes.h"
#include "core/error.h"
#include "core/tensor.h"

namespace linnet {

// One call's tensors, or their gradients, in the computing type (f32 on a device): u [B,T,H], on a
// device in f32 or bf16, log_step [H], log_decay and frequency [1 or H,M], c [G,H,M,2], d [G,H] and
// state [B,H,M,2]; d and state may be undefined. modes [H,M,4] in f64: pole and gain.
struct DiagonalScanTensors {
  Tensor u, log_step, log_decay, frequency, c, d, state, modes;

  // Throws Error where T is not the dtype of the rates.
  template <typename T>
  diagonal::Rates<T> rates(bool bilinear) const {
    const auto elements = [](const Tensor& x) {
      require(x.dtype() == DTypeOf<T>::value, "diagonal scan: expected rates of ",
              name_of(DTypeOf<T>::value), ", got ", name_of(x.dtype()));
      return static_cast<const T*>(x.raw());
    };
    return {log_step.size(0),   log_decay.size(1),   log_decay.size(0),  bilinear,
            elements(log_step), elements(log_decay), elements(frequency)};
  }
};

}  // namespace linnet
