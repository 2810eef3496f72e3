#include "attention/common/joint/chunks.h"

#include "attention/common/joint/cuda/chunks.h"
#include "attention/primitives/block_attention/block_attention.h"
#include "autograd/arithmetic.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

Shape with_tokens(const Shape& shape, int64_t tokens) {
  return shape.with(1, tokens);
}

}  // namespace

Variable chunk_rows(const Variable& x, int64_t size) {
  const int64_t B = x.size(0), T = x.size(1), chunks = (T + size - 1) / size;
  Variable whole = x;
  if (chunks * size != T) {
    const Shape rest = with_tokens(x.shape(), chunks * size - T);
    whole = carry_tokens(x, Variable(Tensor::zeros(rest, x.dtype(), x.value().device())), -1);
  }
  return reshape(whole, x.shape().with(0, B * chunks).with(1, size));
}

ChunkMasks chunk_masks(const Tensor& mask, int64_t B, int64_t T, int64_t size, int64_t rank,
                       Device device, int64_t overlap) {
  const int64_t chunks = (T + size - 1) / size, length = size + 2 * overlap;
  ChunkMasks masks;
  if (mask.defined() || chunks * size != T || overlap > 0) {
    masks.tokens = Tensor::empty({B * chunks, length}, DType::u8, device);
  }
  if (mask.defined()) masks.chunks = Tensor::empty({B, chunks * rank}, DType::u8, device);
  if (!masks.tokens.defined()) return masks;
  if constexpr (kCuda) {
    if (on_cuda(masks.tokens)) {
      cuda::chunk_masks(mask, T, overlap, masks.tokens, rank, masks.chunks);
      return masks;
    }
  }
  for (int64_t row = 0; row < B * chunks; ++row) {
    const int64_t b = row / chunks, first = row % chunks * size - overlap;
    uint8_t any = 0;
    for (int64_t t = 0; t < length; ++t) {
      const bool inside = first + t >= 0 && first + t < T;
      const uint8_t valid =
          inside && (!mask.defined() || mask.data<uint8_t>()[b * T + first + t] != 0) ? 1 : 0;
      masks.tokens.data<uint8_t>()[row * length + t] = valid;
      any |= valid;
    }
    if (mask.defined()) std::fill_n(masks.chunks.data<uint8_t>() + row * rank, rank, any);
  }
  return masks;
}

}  // namespace linnet
