// Table lookups on a CUDA device; autograd/embedding.h calls them.
#pragma once

#include "core/tensor.h"

namespace linnet::cuda {

// y[i] = factor * table[ids[i]]: ids i32, table [V, E], y [.., E]. Rows of ids outside [0, V) are
// NaN: the host cannot check them without waiting for the device.
void embedding(const Tensor& ids, const Tensor& table, double factor, const Tensor& y);

// dtable[v] (+)= factor * sum over i with ids[i] = v of dy[i], in f32 in a fixed order; accumulates
// when `accumulate`. dtable may be wider than dy. Ids outside the table are skipped.
void embedding_backward(const Tensor& ids, const Tensor& dy, double factor, const Tensor& dtable,
                        bool accumulate);

}  // namespace linnet::cuda
