#include "attention/common/joint/packed_chunks.h"

#include "attention/common/joint/cuda/packed_chunks.h"
#include "attention/common/joint/packed_chunks_rule.h"
#include "autograd/arithmetic.h"
#include "autograd/indexing.h"
#include "core/cuda/backend.h"

namespace linnet {
PackedChunks packed_chunks(const Tensor& segments, int64_t size) {
  const int64_t B = segments.size(0), T = segments.size(1), slots = T / size;
  const auto table = [&](int64_t columns) {
    return Tensor::empty({B, columns}, DType::i32, segments.device());
  };
  const PackedChunks packed{size, slots, table(slots * size), table(T), table(T), table(T)};
  if constexpr (kCuda) {
    if (on_cuda(segments)) {
      cuda::plan_packed(segments, packed);
      return packed;
    }
  }
  const packed_chunks_rule::Plan plan{T,
                                      size,
                                      slots,
                                      segments.data<int32_t>(),
                                      packed.tokens.data<int32_t>(),
                                      packed.places.data<int32_t>(),
                                      packed.documents.data<int32_t>(),
                                      packed.earlier.data<int32_t>()};
  for (int64_t b = 0; b < B; ++b) plan.fill(b);
  return packed;
}

Variable packed_rows(const Variable& x, const PackedChunks& packed) {
  const Shape shape = x.shape().with(0, x.size(0) * packed.slots).with(1, packed.size);
  return reshape(gather(x, packed.tokens, packed.places), shape);
}

ChunkMasks packed_masks(const Tensor& mask, const PackedChunks& packed, int64_t rank) {
  const int64_t B = packed.places.size(0), T = packed.places.size(1), size = packed.size;
  const Device device = packed.places.device();
  const ChunkMasks masks{Tensor::empty({B * packed.slots, size}, DType::u8, device),
                         Tensor::empty({B, packed.slots * rank}, DType::u8, device)};
  if constexpr (kCuda) {
    if (on_cuda(masks.tokens)) {
      cuda::mask_packed(mask, packed, rank, masks.tokens, masks.chunks);
      return masks;
    }
  }
  for (int64_t row = 0; row < B * packed.slots; ++row) {
    const int64_t b = row / packed.slots;
    const int32_t* tokens = packed.tokens.data<int32_t>() + row * size;
    uint8_t any = 0;
    for (int64_t i = 0; i < size; ++i) {
      const bool valid =
          tokens[i] >= 0 && (!mask.defined() || mask.data<uint8_t>()[b * T + tokens[i]] != 0);
      masks.tokens.data<uint8_t>()[row * size + i] = valid ? 1 : 0;
      any |= valid ? 1 : 0;
    }
    std::fill_n(masks.chunks.data<uint8_t>() + row * rank, rank, any);
  }
  return masks;
}

Tensor packed_lists(const KeyLists& rule, const PackedChunks& packed) {
  const int64_t B = packed.places.size(0), T = packed.places.size(1);
  const Tensor lists = Tensor::empty({B, 1, T, rule.length}, DType::i32, packed.places.device());
  if constexpr (kCuda) {
    if (on_cuda(lists)) {
      cuda::packed_lists(rule, packed, lists);
      return lists;
    }
  }
  for (int64_t i = 0; i < lists.elements(); ++i) {
    const int64_t token = i / rule.length;
    lists.data<int32_t>()[i] =
        packed_chunks_rule::key(rule, token % T, packed.documents.data<int32_t>()[token],
                                packed.earlier.data<int32_t>()[token], i % rule.length);
  }
  return lists;
}

}  // namespace linnet
