#include "attention/common/joint/packed_chunks.h"

#include <cstring>

#include "attention/common/joint/cuda/packed_chunks.h"
#include "attention/common/joint/packed_chunks_rule.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

// to [rows,each,...] = from [B,m,...]: token i of row r of `to` is token places[r, i] of row
// r / ratio of `from`; zeros where that is -1.
void gather(const Tensor& from, const Tensor& to, int64_t ratio, const PackedChunks& packed,
            bool into_chunks) {
  if constexpr (kCuda) {
    if (on_cuda(to)) return cuda::gather_packed(from, to, packed, into_chunks);
  }
  const int64_t each = to.size(1), m = from.size(1);
  if (to.elements() == 0) return;
  const int64_t width = static_cast<int64_t>(to.bytes()) / (to.size(0) * each);
  const int32_t* begins = packed.begins.data<int32_t>();
  const int32_t* places = packed.places.data<int32_t>();
  parallel_for(to.size(0) * each, 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / each, first = into_chunks ? begins[row] : 0;
      const int64_t token = into_chunks ? first + i % each : places[i];
      char* out = static_cast<char*>(to.raw()) + i * width;
      const bool there = first >= 0 && token >= 0;
      if (!there) {
        std::memset(out, 0, static_cast<size_t>(width));
        continue;
      }
      std::memcpy(out, static_cast<const char*>(from.raw()) + (row / ratio * m + token) * width,
                  static_cast<size_t>(width));
    }
  });
}

Shape with_leading(const Shape& shape, int64_t rows, int64_t tokens) {
  std::vector<int64_t> sizes = shape.sizes();
  sizes[0] = rows;
  sizes[1] = tokens;
  return Shape(sizes);
}

}  // namespace

PackedChunks packed_chunks(const Tensor& segments, int64_t size) {
  const int64_t B = segments.size(0), T = segments.size(1), slots = T / size;
  const auto table = [&](int64_t columns) {
    return Tensor::empty({B, columns}, DType::i32, segments.device());
  };
  const PackedChunks packed{size, slots, table(slots), table(T), table(T), table(T)};
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
                                      packed.begins.data<int32_t>(),
                                      packed.places.data<int32_t>(),
                                      packed.documents.data<int32_t>(),
                                      packed.earlier.data<int32_t>()};
  for (int64_t b = 0; b < B; ++b) plan.fill(b);
  return packed;
}

Variable packed_rows(const Variable& x, const PackedChunks& packed) {
  const Tensor& from = x.value();
  const Shape shape = with_leading(from.shape(), from.size(0) * packed.slots, packed.size);
  const Tensor y = Tensor::empty(shape, from.dtype(), from.device());
  gather(from, y, packed.slots, packed, true);
  return record("packed_rows", y, {x}, [shape = from.shape(), packed](Gradients& gradients) {
    const Tensor& dy = gradients.output();
    const Tensor dx = Tensor::empty(shape, dy.dtype(), dy.device());
    const Shape joined = with_leading(dy.shape(), shape[0], packed.slots * packed.size);
    gather(dy.reshape(joined), dx, 1, packed, false);
    gradients.add(0, dx);
  });
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
    const int64_t b = row / packed.slots, begin = packed.begins.data<int32_t>()[row];
    uint8_t any = 0;
    for (int64_t i = 0; i < size; ++i) {
      const bool valid =
          begin >= 0 && (!mask.defined() || mask.data<uint8_t>()[b * T + begin + i] != 0);
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
