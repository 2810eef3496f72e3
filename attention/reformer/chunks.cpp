#include "attention/reformer/chunks.h"

#include <algorithm>
#include <limits>

#include "attention/primitives/binding.h"
#include "attention/reformer/cuda/chunks.h"
#include "core/cuda/backend.h"
#include "core/sort.h"
#include "core/threads.h"

namespace linnet {
namespace {

template <typename Body>
void for_all(int64_t count, int64_t few, const Body& body) {
  parallel_for(count, few, [&](int64_t begin, int64_t end) {
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
  for_all(keys.elements(), 4096, [&](int64_t i) {
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

void fill(const ChunkTensors& all) {
  const Chunks& chunks = all.chunks;
  if constexpr (kCuda) {
    if (on_cuda(chunks.index)) return cuda::fill_chunks(all);
  }
  const ChunkRule rule = all.rule([](const Tensor& x) { return x.raw(); });
  if (all.starts.defined()) {
    for_all(all.starts.size(0), 1, [&](int64_t b) { rule.start_documents(b); });
  }
  for_all(chunks.places.elements(), 4096, [&](int64_t i) { rule.place(i); });
  for_all(chunks.index.elements(), 4096, [&](int64_t i) { rule.list(i); });
  for_all(chunks.order.elements(), 4096, [&](int64_t i) { rule.look(i); });
  if (!chunks.bias.defined()) return;
  binding::dispatch(chunks.bias.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for_all(chunks.bias.elements(), 1024, [&](int64_t i) {
      constexpr T kNothing = -std::numeric_limits<T>::infinity();
      chunks.bias.data<T>()[i] = rule.meets_first(i) ? T{0} : kNothing;
    });
  });
}

}  // namespace

Chunks make_chunks(const Tensor& buckets, const ChunkContext& context, DType dtype) {
  const int64_t B = buckets.size(0), T = buckets.size(1), H = buckets.size(2);
  const bool whole = T <= context.chunk;
  const int64_t rounds = whole ? 1 : buckets.size(3);
  const int64_t size = std::clamp<int64_t>(T, 1, context.chunk);
  const int64_t tokens = context.spans.defined() && !whole ? 2 * T : T;
  const int64_t N = rounds * ((tokens + size - 1) / size * size), length = whole ? size : 2 * size;
  const Device device = buckets.device();
  ChunkTensors all{context, whole ? Tensor() : sorted_tokens(buckets, context.spans), {}, {}};
  if (context.spans.defined()) all.starts = Tensor::empty({B, T}, DType::i32, device);
  all.chunks = {size,
                Tensor::zeros({B, H, N}, DType::i32, device),
                Tensor::empty({B, H, rounds, T}, DType::i32, device),
                Tensor::empty({B, H, N / size, length}, DType::i32, device),
                Tensor::empty({B, H, N, 3}, DType::i32, device),
                context.dedup ? Tensor::empty({B, H, N, length}, dtype, device) : Tensor()};
  fill(all);
  if (context.dedup) all.chunks.sight = {};
  return all.chunks;
}

}  // namespace linnet
