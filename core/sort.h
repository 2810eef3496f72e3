// Stable sorting, for hashing, clustering and top-k selection.
#pragma once

#include "core/tensor.h"

namespace linnet {

// Sorts every row (the last dimension) of keys, f32, i32 or i64, ascending and stably: `sorted`
// receives the keys, `order` (i32) the place in its row that each came from; both have the shape of
// keys and lie beside it. -0 equals 0; NaN comes last, or first where its sign bit is set. The same
// result on every device. At most 2^31 - 1 keys in all. Throws Error on other dtypes, shapes and
// sizes.
void sort_rows(const Tensor& keys, const Tensor& sorted, const Tensor& order);

}  // namespace linnet
