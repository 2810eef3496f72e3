#include "attention/common/joint/chunks.h"

#include <cstring>

#include "attention/common/joint/cuda/chunks.h"
#include "attention/primitives/block_attention/block_attention.h"
#include "autograd/arithmetic.h"
#include "core/cuda/backend.h"
#include "core/elementwise.h"
#include "core/threads.h"

namespace linnet {
namespace {

Shape with_tokens(const Shape& shape, int64_t tokens) {
  std::vector<int64_t> sizes = shape.sizes();
  sizes[1] = tokens;
  return Shape(sizes);
}

Tensor swapped(const Tensor& x) {
  const Tensor y =
      Tensor::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.dtype(), x.device());
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      cuda::swap_middle(x, y);
      return y;
    }
  }
  const int64_t M = x.size(1), N = x.size(2), K = x.size(3);
  if (x.elements() == 0) return y;
  const auto width = static_cast<int64_t>(size_of(x.dtype())) * K;
  parallel_for(x.size(0) * M * N, 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i % N, m = i / N % M, a = i / N / M;
      std::memcpy(static_cast<char*>(y.raw()) + ((a * N + n) * M + m) * width,
                  static_cast<const char*>(x.raw()) + i * width, static_cast<size_t>(width));
    }
  });
  return y;
}

}  // namespace

Variable chunk_rows(const Variable& x, int64_t size) {
  const int64_t B = x.size(0), T = x.size(1), chunks = (T + size - 1) / size;
  Variable whole = x;
  if (chunks * size != T) {
    const Shape rest = with_tokens(x.shape(), chunks * size - T);
    whole = carry_tokens(x, Variable(Tensor::zeros(rest, x.dtype(), x.value().device())), -1);
  }
  std::vector<int64_t> sizes = x.shape().sizes();
  sizes[0] = B * chunks;
  sizes[1] = size;
  return reshape(whole, Shape(sizes));
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

Variable swap_middle(const Variable& x) {
  return record("swap_middle", swapped(x.value()), {x},
                [](Gradients& gradients) { gradients.add(0, swapped(gradients.output())); });
}

Variable add_vector(const Variable& x, double factor, const Variable& u) {
  const Tensor y = x.value().clone();
  scale_into(y, factor);
  add_row_into(y, u.value());
  return record("add_vector", y, {x, u}, [factor](Gradients& gradients) {
    const Tensor& dy = gradients.output();
    if (gradients.wanted(1)) {
      const Tensor du = Tensor::empty({dy.shape()[-1]}, dy.dtype(), dy.device());
      sum_rows(dy, du, false);
      gradients.add(1, du);
    }
    const Tensor dx = dy.clone();
    scale_into(dx, factor);
    gradients.add(0, dx);
  });
}

}  // namespace linnet
