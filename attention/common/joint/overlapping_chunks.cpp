#include "attention/common/joint/overlapping_chunks.h"

#include "attention/common/joint/chunks.h"
#include "attention/common/joint/key_lists.h"
#include "autograd/arithmetic.h"
#include "autograd/indexing.h"
#include "autograd/layout.h"

namespace linnet {

Variable overlapping_chunk_rows(const Variable& x, int64_t size, int64_t overlap) {
  if (overlap == 0) return chunk_rows(x, size);
  const int64_t B = x.size(0), T = x.size(1);
  KeyLists tokens;
  tokens.kind = KeyLists::Kind::block;
  tokens.size = tokens.group = size;
  tokens.before = overlap;
  tokens.lists = (T + size - 1) / size;
  tokens.length = size + 2 * overlap;
  tokens.keys = T;
  const int64_t count = tokens.lists * tokens.length;
  const Tensor index = key_lists(tokens, x.value().device()).reshape({1, count});
  const Shape shape = x.shape().with(0, B * tokens.lists).with(1, tokens.length);
  return reshape(gather(x, expanded(index, {B, count})), shape);
}

}  // namespace linnet
