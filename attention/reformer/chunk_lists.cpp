#include "attention/reformer/chunk_lists.h"

#include "attention/primitives/binding.h"
#include "attention/reformer/cuda/lists.h"
#include "attention/reformer/list_rule.h"
#include "core/cuda/backend.h"
#include "core/sort.h"
#include "core/threads.h"

namespace linnet {
namespace {

template <typename Body>
void for_all(int64_t count, const Body& body) {
  parallel_for(count, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

// keys i64 [B,H,rounds,T] of buckets [B,T,H,rounds].
void write_keys(const Tensor& buckets, const Tensor& spans, const Tensor& keys) {
  if constexpr (kCuda) {
    if (on_cuda(keys)) return cuda::sorting_keys(buckets, spans, keys);
  }
  const int64_t T = keys.size(3), lists = keys.size(1) * keys.size(2);
  const int32_t* begins = binding::pointer<int32_t>(spans);
  for_all(keys.elements(), [&](int64_t i) {
    const int64_t token = i / T / lists * T + i % T;
    keys.data<int64_t>()[i] = bucket_order(begins == nullptr ? 0 : begins[token],
                                           buckets.data<int32_t>()[token * lists + i / T % lists]);
  });
}

Tensor sorted_tokens(const Tensor& buckets, const Tensor& spans) {
  const Shape shape{buckets.size(0), buckets.size(2), buckets.size(3), buckets.size(1)};
  const auto empty = [&](DType dtype) { return Tensor::empty(shape, dtype, buckets.device()); };
  const Tensor keys = empty(DType::i64), order = empty(DType::i32);
  write_keys(buckets, spans, keys);
  sort_rows(keys, empty(DType::i64), order);
  return order;
}

void write_places(const ListTensors& lists) {
  if constexpr (kCuda) {
    if (on_cuda(lists.index)) return cuda::write_places(lists);
  }
  const ListRule rule = lists.rule([](const Tensor& x) { return x.raw(); });
  const int64_t width = rule.width;
  parallel_for(width == 0 ? 0 : lists.index.elements() / width, 64,
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const ListRule::Row row = rule.row(i);
                   for (int64_t t = 0; t < width; ++t) rule.place(row, t);
                 }
               });
}

void keep_first(const ListTensors& lists, const Tensor& sorted) {
  if constexpr (kCuda) {
    if (on_cuda(lists.index)) return cuda::keep_first(lists, sorted);
  }
  const ListRule rule = lists.rule([](const Tensor& x) { return x.raw(); });
  for_all(lists.index.elements(), [&](int64_t i) { rule.keep_first(i, sorted.data<int32_t>()); });
}

void complete(const ListTensors& lists) {
  if constexpr (kCuda) {
    if (on_cuda(lists.index)) return cuda::complete_lists(lists);
  }
  const ListRule rule = lists.rule([](const Tensor& x) { return x.raw(); });
  for_all(lists.queries(), [&](int64_t i) { rule.complete(i); });
}

Tensor lists_of(const ListTensors& lists) {
  const Tensor& index = lists.index;
  write_places(lists);
  if (lists.context.dedup && lists.order.defined()) {
    const auto empty = [&] { return Tensor::empty(index.shape(), DType::i32, index.device()); };
    const Tensor sorted = empty();
    sort_rows(index, sorted, empty());
    keep_first(lists, sorted);
  }
  complete(lists);
  return index;
}

}  // namespace

Tensor chunk_lists(const Tensor& buckets, const ChunkContext& context) {
  const Shape shape{buckets.size(0), buckets.size(2), buckets.size(1),
                    buckets.size(3) * 2 * context.chunk};
  const Tensor index = Tensor::empty(shape, DType::i32, buckets.device());
  return lists_of({context, sorted_tokens(buckets, context.spans), index});
}

Tensor whole_lists(int64_t B, int64_t T, Device device, const ChunkContext& context) {
  return lists_of({context, {}, Tensor::empty({B, 1, T, T}, DType::i32, device)});
}

}  // namespace linnet
