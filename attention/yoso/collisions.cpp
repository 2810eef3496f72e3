#include "attention/yoso/collisions.h"

#include <algorithm>

#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/tile_gemm.h"
#include "attention/yoso/bucket_lists.h"
#include "attention/yoso/cuda/collisions.h"
#include "core/cuda/backend.h"
#include "core/sort.h"
#include "core/threads.h"

namespace linnet {
namespace {

constexpr const char* kName = "sampled collisions";
constexpr int64_t kSerialWork = 1 << 17;  // multiply-adds that are not worth another thread

// Minimum number of tasks per thread, with that many multiply-adds each.
int64_t few_tasks(int64_t work) {
  return std::max<int64_t>(kSerialWork / std::max<int64_t>(work, 1), 1);
}

// keys i64 [B,H,hashes,T] of codes [B,T,H,hashes].
void write_keys(const Tensor& codes, const Tensor& segments, const Tensor& keys) {
  if constexpr (kCuda) {
    if (on_cuda(codes)) return cuda::bucket_keys(codes, segments, keys);
  }
  const int64_t T = codes.size(1), lists = codes.size(2) * codes.size(3);
  for (int64_t b = 0; b < codes.size(0); ++b) {
    int32_t document = 0;
    for (int64_t t = 0; t < T; ++t) {
      const int32_t* ids = segments.defined() ? segments.data<int32_t>() + b * T : nullptr;
      if (ids != nullptr && t > 0 && ids[t] != ids[t - 1]) document = static_cast<int32_t>(t);
      for (int64_t n = 0; n < lists; ++n) {
        keys.data<int64_t>()[(b * lists + n) * T + t] =
            bucket_key(codes.data<int32_t>()[(b * T + t) * lists + n], document);
      }
    }
  }
}

SortedCodes sorted_codes(const Tensor& codes, const Tensor& segments) {
  const Shape shape{codes.size(0), codes.size(2), codes.size(3), codes.size(1)};
  const Tensor keys = Tensor::empty(shape, DType::i64, codes.device());
  write_keys(codes, segments, keys);
  const SortedCodes sorted{Tensor::empty(shape, DType::i64, codes.device()),
                           Tensor::empty(shape, DType::i32, codes.device())};
  sort_rows(keys, sorted.keys, sorted.order);
  return sorted;
}

struct Sides {
  SortedCodes queries, keys;

  // The same with queries and keys exchanged.
  Sides swapped() const { return {keys, queries}; }
  BucketLists lists() const {
    BucketLists lists;
    lists.T = queries.keys.size(3);
    lists.S = keys.keys.size(3);
    lists.H = keys.keys.size(1);
    lists.hashes = keys.keys.size(2);
    lists.query_keys = static_cast<const int64_t*>(queries.keys.raw());
    lists.key_keys = static_cast<const int64_t*>(keys.keys.raw());
    lists.queries = static_cast<const int32_t*>(queries.order.raw());
    lists.keys = static_cast<const int32_t*>(keys.order.raw());
    return lists;
  }
};

Sides sides_of(const CollisionContext& context) {
  return {sorted_codes(context.query_codes, context.segments),
          sorted_codes(context.key_codes, context.segments)};
}

// Places in the lists of one hash.
struct Bucket {
  const int32_t *query, *query_end, *key, *key_end;
  int64_t queries() const { return query_end - query; }
  int64_t keys() const { return key_end - key; }
};

// Calls body(bucket) for every bucket of (row, head) `list` that has queries and keys.
template <typename Body>
void for_buckets(const BucketLists& lists, int64_t list, const Body& body) {
  for (int64_t n = list * lists.hashes; n < (list + 1) * lists.hashes; ++n) {
    const int64_t *query = lists.query_keys + n * lists.T, *key = lists.key_keys + n * lists.S;
    int64_t j = 0;
    for (int64_t i = 0; i < lists.T && query[i] != kNoBucket;) {
      const int64_t first_query = i, bucket = query[i];
      while (i < lists.T && query[i] == bucket) ++i;
      while (j < lists.S && key[j] < bucket) ++j;
      const int64_t first_key = j;
      while (j < lists.S && key[j] == bucket) ++j;
      if (j == first_key) continue;
      const int32_t *queries = lists.queries + n * lists.T, *keys = lists.keys + n * lists.S;
      body(Bucket{queries + first_query, queries + i, keys + first_key, keys + j});
    }
  }
}

// Token t of head h in [B,T,H,width], on the CPU.
template <typename T>
struct HeadRows {
  const Tensor& x;
  int64_t b, h;
  int64_t width() const { return x.size(3); }
  T* at(int64_t t) const { return x.data<T>() + ((b * x.size(1) + t) * x.size(2) + h) * x.size(3); }
};

// out_i = factor sum over hashes of the x_j in the bucket of query i.
void read_buckets(const Sides& sides, const Tensor& x, double factor, const Tensor& out) {
  const BucketLists lists = sides.lists();
  if constexpr (kCuda) {
    if (on_cuda(out)) return cuda::read_buckets(lists, x, static_cast<float>(factor), out);
  }
  binding::dispatch(out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const int64_t work = lists.hashes * (lists.T + lists.S) * x.size(3);
    parallel_for(out.size(0) * lists.H, few_tasks(work), [&](int64_t begin, int64_t end) {
      std::vector<T> sum(static_cast<size_t>(x.size(3)));
      for (int64_t list = begin; list < end; ++list) {
        const HeadRows<T> from{x, list / lists.H, list % lists.H}, to{out, from.b, from.h};
        for_buckets(lists, list, [&](const Bucket& bucket) {
          std::fill(sum.begin(), sum.end(), T{0});
          for (const int32_t* j = bucket.key; j < bucket.key_end; ++j) {
            axpy_row(from.width(), T{1}, from.at(*j), sum.data());
          }
          for (const int32_t* i = bucket.query; i < bucket.query_end; ++i) {
            axpy_row(from.width(), static_cast<T>(factor), sum.data(), to.at(*i));
          }
        });
      }
    });
  });
}

// out_i = factor sum over hashes of sum_j (g_i . v_j) x_j over the bucket of query i.
void read_weighed_buckets(const Sides& sides, const Tensor& g, const Tensor& v, const Tensor& x,
                          double factor, const Tensor& out) {
  const BucketLists lists = sides.lists();
  if constexpr (kCuda) {
    if (on_cuda(out)) {
      return cuda::read_weighed_buckets(lists, g, v, x, static_cast<float>(factor), out);
    }
  }
  const int64_t V = v.size(3), K = x.size(3);
  binding::dispatch(out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const int64_t work = lists.hashes * (lists.T + lists.S) * V * K;
    parallel_for(out.size(0) * lists.H, few_tasks(work), [&](int64_t begin, int64_t end) {
      std::vector<T> outer(static_cast<size_t>(V * K));
      for (int64_t list = begin; list < end; ++list) {
        const HeadRows<T> by{g, list / lists.H, list % lists.H}, values{v, by.b, by.h};
        const HeadRows<T> from{x, by.b, by.h}, to{out, by.b, by.h};
        for_buckets(lists, list, [&](const Bucket& bucket) {
          const int64_t pairs = bucket.queries() * bucket.keys();
          if (pairs * (V + K) <= (bucket.queries() + bucket.keys() + 1) * V * K) {
            for (const int32_t* i = bucket.query; i < bucket.query_end; ++i) {
              for (const int32_t* j = bucket.key; j < bucket.key_end; ++j) {
                const T weight = static_cast<T>(factor) * dot_row(by.at(*i), values.at(*j), V);
                axpy_row(K, weight, from.at(*j), to.at(*i));
              }
            }
            return;
          }
          // The sum of v_j x_j^T once for all queries.
          std::fill(outer.begin(), outer.end(), T{0});
          for (const int32_t* j = bucket.key; j < bucket.key_end; ++j) {
            for (int64_t l = 0; l < V; ++l) {
              axpy_row(K, values.at(*j)[l], from.at(*j), &outer[static_cast<size_t>(l * K)]);
            }
          }
          for (const int32_t* i = bucket.query; i < bucket.query_end; ++i) {
            for (int64_t l = 0; l < V; ++l) {
              axpy_row(K, static_cast<T>(factor) * by.at(*i)[l], &outer[static_cast<size_t>(l * K)],
                       to.at(*i));
            }
          }
        });
      }
    });
  });
}

}  // namespace

Tensor hash_codes(const Tensor& x, const Tensor& planes, const Tensor& mask, int64_t bits) {
  require(x.shape().rank() == 4 && planes.shape().rank() == 3 && planes.size(0) == x.size(2) &&
              planes.size(2) == x.size(3) && bits > 0 && bits <= kMaxHashBits &&
              planes.size(1) % bits == 0,
          "hash codes: expected x [B,T,H,K] and planes [H, hashes * ", bits, ", K] with 1 to ",
          kMaxHashBits, " bits, got ", x.shape(), " and ", planes.shape());
  const int64_t B = x.size(0), T = x.size(1), H = x.size(2), K = x.size(3), rows = planes.size(1);
  const Tensor codes = Tensor::empty({B, T, H, rows / bits}, DType::i32, x.device());
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      cuda::hash_codes(x, planes, mask, bits, codes);
      return codes;
    }
  }
  const Tensor from = x.to(DType::f64), normals = planes.to(DType::f64);
  parallel_for(B * T * H, few_tasks(rows * K), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int32_t* code = codes.data<int32_t>() + i * rows / bits;
      const bool valid = !mask.defined() || mask.data<uint8_t>()[i / H] != 0;
      std::fill_n(code, rows / bits, valid ? 0 : -1);
      count_multiply_adds(rows * K);
      for (int64_t r = 0; valid && r < rows; ++r) {
        const double product = dot_row(normals.data<double>() + (i % H * rows + r) * K,
                                       from.data<double>() + i * K, K);
        code[r / bits] |= int32_t{product > 0} << r % bits;
      }
    }
  });
  return codes;
}

Variable sampled_collisions(const Variable& q, const Variable& k, const Variable& v,
                            const CollisionContext& context) {
  const Shape &qs = q.shape(), &ks = k.shape(), &vs = v.shape();
  require(qs.rank() == 4 && ks.rank() == 4 && vs.rank() == 4 && qs[0] == ks[0] && qs[2] == ks[2] &&
              qs[3] == ks[3] && vs[0] == ks[0] && vs[1] == ks[1] && vs[2] == ks[2],
          kName, ": expected q [B,T,H,K], k [B,S,H,K] and v [B,S,H,V], got ", qs, ", ", ks, ", ",
          vs);
  const int64_t hashes = context.key_codes.size(3);
  require(context.query_codes.shape() == Shape({qs[0], qs[1], qs[2], hashes}) &&
              context.key_codes.shape() == Shape({ks[0], ks[1], ks[2], hashes}) && hashes > 0,
          kName, ": expected codes [B,T,H,hashes] and [B,S,H,hashes], got ",
          context.query_codes.shape(), " and ", context.key_codes.shape());
  const Device device = q.value().device();
  const bool on_device = kCuda && on_cuda(q.value());
  require(!on_device || q.dtype() != DType::f64, kName, ": f64 is computed on the CPU only");
  const DType dtype = binding::computing_type(q), stored = on_device ? q.dtype() : dtype;
  const double share = 1 / static_cast<double>(hashes);
  const Tensor queries = q.value().to(stored), keys = k.value().to(stored);
  const Tensor values = v.value().to(stored);
  const auto zeros = [=](const Shape& shape) { return Tensor::zeros(shape, dtype, device); };
  const Tensor y = zeros({qs[0], qs[1], qs[2], vs[3]});
  read_buckets(sides_of(context), values, share, y);
  // Fused: vectors add up by buckets of hashes, so that no [T,S] matrix of collisions is made.
  return record(kName, y.to(q.dtype()), {q, k, v}, [=](Gradients& gradients) {
    const Sides sides = sides_of(context);
    const Tensor dy = gradients.output(0).to(stored);
    const Tensor dq = zeros(queries.shape()), dk = zeros(keys.shape()), dv = zeros(values.shape());
    const double slope = context.slope * share;
    read_weighed_buckets(sides, dy, values, keys, slope, dq);
    read_weighed_buckets(sides.swapped(), values, dy, queries, slope, dk);
    read_buckets(sides.swapped(), dy, share, dv);
    gradients.add(0, dq);
    gradients.add(1, dk);
    gradients.add(2, dv);
  });
}

}  // namespace linnet
