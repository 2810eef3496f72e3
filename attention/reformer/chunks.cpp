#include "attention/reformer/chunks.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "attention/primitives/common/binding.h"
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

// keys i64 [rounds,B,H,T] of buckets [B,T,H,rounds].
void write_keys(const Tensor& buckets, const Tensor& spans, const Tensor& keys) {
  if constexpr (kCuda) {
    if (on_cuda(keys)) return cuda::sorting_keys(buckets, spans, keys);
  }
  const int64_t rounds = keys.size(0), H = keys.size(2), T = keys.size(3);
  const int32_t* begins = binding::pointer<int32_t>(spans);
  for_all(keys.elements(), 4096, [&](int64_t i) {
    const int64_t list = i / T, token = list / H % buckets.size(0) * T + i % T;
    const int64_t bucket = (token * H + list % H) * rounds + list / H / buckets.size(0);
    keys.data<int64_t>()[i] =
        bucket_order(begins == nullptr ? 0 : begins[token], buckets.data<int32_t>()[bucket]);
  });
}

Tensor sorted_tokens(const Tensor& buckets, const Tensor& spans) {
  const Shape shape{buckets.size(3), buckets.size(0), buckets.size(2), buckets.size(1)};
  const auto empty = [&](DType dtype) { return Tensor::empty(shape, dtype, buckets.device()); };
  const Tensor keys = empty(DType::i64), order = empty(DType::i32);
  write_keys(buckets, spans, keys);
  sort_rows(keys, empty(DType::i64), order);
  return order;
}

template <typename T>
void write_bias(const ChunkRule& rule, T* bias, int64_t queries) {
  constexpr T kNothing = -std::numeric_limits<T>::infinity();
  for_all(queries, 64, [&](int64_t query) {
    const ChunkRule::Sight sight = rule.sight(query);
    const int32_t* keys = rule.index + query / rule.chunk * rule.length;
    T* to = bias + query * rule.length;
    for (int64_t t = 0; t < rule.length; ++t) to[t] = sight.sees(keys[t]) ? T{0} : kNothing;
    for (int64_t t = 0; rule.dedup && t < rule.length; ++t) {
      if (to[t] == 0 && rule.met_before(query, t)) to[t] = kNothing;
    }
  });
}

void fill(const ChunkTensors& all) {
  const Chunks& chunks = all.chunks;
  if constexpr (kCuda) {
    if (on_cuda(chunks.index)) return cuda::fill_chunks(all);
  }
  const ChunkRule rule = all.rule();
  if (rule.starts != nullptr) for_all(rule.B, 1, [&](int64_t b) { rule.start_documents(b); });
  for_all(chunks.places.elements(), 4096, [&](int64_t i) { rule.place(i); });
  for_all(chunks.index.elements(), 4096, [&](int64_t i) { rule.list(i); });
  binding::dispatch(chunks.bias.dtype(), [&](auto zero) {
    write_bias(rule, chunks.bias.data<decltype(zero)>(), chunks.order.elements());
  });
}

}  // namespace

Chunks Chunks::of(int64_t round) const {
  const auto own = [&](const Tensor& x) {
    return x.rows(round, round + 1).reshape(Shape(x.shape().sizes().subspan(1)));
  };
  return {size, own(order), own(places), own(index), own(bias)};
}

Chunks make_chunks(const Tensor& buckets, const ChunkContext& context, DType dtype) {
  const int64_t B = buckets.size(0), T = buckets.size(1), H = buckets.size(2);
  const bool whole = T <= context.chunk;
  const int64_t rounds = whole ? 1 : buckets.size(3);
  const int64_t size = std::clamp<int64_t>(T, 1, context.chunk);
  const int64_t tokens = context.spans.defined() && !whole ? 2 * T : T;
  const int64_t N = (tokens + size - 1) / size * size, length = whole ? size : 2 * size;
  const Device device = buckets.device();
  ChunkTensors all{context, whole ? Tensor() : sorted_tokens(buckets, context.spans), {}, {}};
  if (context.spans.defined()) all.starts = Tensor::empty({B, T}, DType::i32, device);
  all.chunks = {size, Tensor::full({rounds, B, H, N}, -1, DType::i32, device),
                Tensor::empty({rounds, B, H, T}, DType::i32, device),
                Tensor::empty({rounds, B, H, N / size, length}, DType::i32, device),
                Tensor::empty({rounds, B, H, N, length}, dtype, device)};
  fill(all);
  return all.chunks;
}

}  // namespace linnet
