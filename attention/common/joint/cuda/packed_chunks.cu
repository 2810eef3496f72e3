#include "attention/common/joint/cuda/packed_chunks.h"

#include "attention/common/joint/packed_chunks_rule.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {

// A thread loops over a row: chunks are numbered in the order in which they end.
void plan_packed(const Tensor& segments, const PackedChunks& packed) {
  const packed_chunks_rule::Plan plan{segments.size(1),
                                      packed.size,
                                      packed.slots,
                                      pointer<int32_t>(segments),
                                      pointer<int32_t>(packed.tokens),
                                      pointer<int32_t>(packed.places),
                                      pointer<int32_t>(packed.documents),
                                      pointer<int32_t>(packed.earlier)};
  for_each("plan_packed", segments.size(0), [=] __device__(int64_t b) { plan.fill(b); });
}

void mask_packed(const Tensor& mask, const PackedChunks& packed, int64_t rank, const Tensor& tokens,
                 const Tensor& chunks) {
  const int64_t T = packed.places.size(1), size = packed.size, slots = packed.slots;
  const uint8_t* valid = pointer_or_null<uint8_t>(mask);
  const int32_t* taken = pointer<int32_t>(packed.tokens);
  uint8_t *to = pointer<uint8_t>(tokens), *any = pointer<uint8_t>(chunks);
  for_each("mask_packed_tokens", tokens.elements(), [=] __device__(int64_t i) {
    const int64_t token = taken[i], row = i / size / slots * T;
    to[i] = token >= 0 && (valid == nullptr || valid[row + token] != 0) ? 1 : 0;
  });
  for_each("mask_packed_chunks", chunks.elements(), [=] __device__(int64_t i) {
    uint8_t found = 0;
    for (int64_t t = 0; t < size; ++t) found |= to[i / rank * size + t];
    any[i] = found;
  });
}

void packed_lists(const KeyLists& rule, const PackedChunks& packed, const Tensor& lists) {
  const int64_t T = packed.places.size(1);
  const int32_t* documents = pointer<int32_t>(packed.documents);
  const int32_t* earlier = pointer<int32_t>(packed.earlier);
  int32_t* to = pointer<int32_t>(lists);
  for_each("packed_lists", lists.elements(), [=] __device__(int64_t i) {
    const int64_t token = i / rule.length;
    to[i] =
        packed_chunks_rule::key(rule, token % T, documents[token], earlier[token], i % rule.length);
  });
}

}  // namespace linnet::cuda
