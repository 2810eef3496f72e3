#include "attention/linformer/position_table.h"

#include "attention/common/mixer_support.h"
#include "autograd/arithmetic.h"
#include "autograd/layout.h"

namespace linnet {

Variable position_table(const Variable& weight, int64_t heads) {
  const Shape& shape = weight.shape();
  require(shape.rank() == 3 && (shape[0] == 1 || shape[0] == heads),
          "position_table: expected weights [1 or ", heads, ", slots, positions], got ", shape);
  const int64_t slots = shape[1], positions = shape[2];
  const Variable rows = permute(as_dtype(weight, sum_dtype(weight.dtype())), {2, 0, 1});
  return reshape(expand(rows, {positions, heads, slots}), {positions, heads * slots});
}

}  // namespace linnet
