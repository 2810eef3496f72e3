// The contract of log-decays, which no shape shows: a state never grows by itself.
#pragma once

#include "core/tensor.h"

namespace linnet {

// Where values are checked (core/value_checks.h): throws Error, naming the primitive, for a
// positive element of log_decay [B,T,...] at a token that counts (mask [B,T], undefined: all).
// Looks at f32 and f64 in host memory; undefined tensors and those on a device pass.
void check_log_decay(const Tensor& log_decay, const Tensor& mask, const char* primitive);

}  // namespace linnet
