#include "attention/common/joint/cuda/chunks.h"

#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {

void chunk_masks(const Tensor& mask, int64_t T, int64_t overlap, const Tensor& tokens, int64_t rank,
                 const Tensor& chunks) {
  const int64_t length = tokens.size(1), size = length - 2 * overlap, each = (T + size - 1) / size;
  const uint8_t* valid = pointer_or_null<uint8_t>(mask);
  uint8_t* to = pointer<uint8_t>(tokens);
  for_each("mask_chunk_tokens", tokens.elements(), [=] __device__(int64_t i) {
    const int64_t row = i / length, b = row / each, t = row % each * size - overlap + i % length;
    to[i] = t >= 0 && t < T && (valid == nullptr || valid[b * T + t] != 0) ? 1 : 0;
  });
  if (!chunks.defined()) return;
  uint8_t* any = pointer<uint8_t>(chunks);
  for_each("mask_chunks", chunks.elements(), [=] __device__(int64_t i) {
    uint8_t found = 0;
    for (int64_t t = 0; t < length; ++t) found |= to[i / rank * length + t];
    any[i] = found;
  });
}

}  // namespace linnet::cuda
