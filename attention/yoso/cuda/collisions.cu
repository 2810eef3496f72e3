#include "attention/yoso/cuda/collisions.h"

#include "attention/primitives/common/cuda/token_spans.h"
#include "attention/primitives/common/cuda/warp_items.h"
#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

constexpr int kThreads = 64;

// Loops over the buckets of one row and head that have queries: column.clear() for each,
// column.add(key token) for its keys, then column.read(query token) for its queries.
template <typename Column>
__device__ void for_each_bucket(const BucketLists& lists, int64_t list, const Column& column) {
  for (int64_t n = list * lists.hashes; n < (list + 1) * lists.hashes; ++n) {
    const int64_t *query = lists.query_keys + n * lists.T, *key = lists.key_keys + n * lists.S;
    const int32_t *queries = lists.queries + n * lists.T, *keys = lists.keys + n * lists.S;
    int64_t j = 0;
    for (int64_t i = 0; i < lists.T && query[i] != kNoBucket;) {
      const int64_t bucket = query[i];
      while (j < lists.S && key[j] < bucket) ++j;
      column.clear();
      for (; j < lists.S && key[j] == bucket; ++j) column.add(keys[j]);
      for (; i < lists.T && query[i] == bucket; ++i) column.read(queries[i]);
    }
  }
}

// The place of token t of head h in an array [B,tokens,H,width].
__device__ __forceinline__ int64_t row_of(const BucketLists& lists, int64_t list, int64_t tokens,
                                          int64_t t) {
  return (list / lists.H * tokens + t) * lists.H + list % lists.H;
}

struct SumColumn {
  const BucketLists& lists;
  int64_t list, c, width;
  float factor;
  StoredValues x;
  float* out;
  float& sum;

  __device__ void clear() const { sum = 0; }
  __device__ void add(int64_t j) const { sum += x.at(row_of(lists, list, lists.S, j) * width + c); }
  __device__ void read(int64_t i) const {
    out[row_of(lists, list, lists.T, i) * width + c] += factor * sum;
  }
};

__global__ void read_bucket_columns(BucketLists lists, int64_t columns, int64_t width, float factor,
                                    StoredValues x, float* out) {
  const int64_t item = global_thread();
  if (item >= columns) return;
  float sum = 0;
  const int64_t list = item / width;
  for_each_bucket(lists, list, SumColumn{lists, list, item % width, width, factor, x, out, sum});
}

// The lanes of a warp have the channels of v: `sums` holds sum_j v_j x_jc.
struct WeighedColumn {
  const BucketLists& lists;
  int64_t list, c, V, K;
  float factor;
  StoredValues g, v, x;
  float *out, *sums;
  int lane;

  __device__ void clear() const {
    for (int64_t l = lane; l < V; l += kLanes) sums[l] = 0;
  }
  __device__ void add(int64_t j) const {
    const int64_t row = row_of(lists, list, lists.S, j);
    const float number = x.at(row * K + c);
    for (int64_t l = lane; l < V; l += kLanes) sums[l] += v.at(row * V + l) * number;
  }
  __device__ void read(int64_t i) const {
    const int64_t row = row_of(lists, list, lists.T, i);
    float total = 0;
    for (int64_t l = lane; l < V; l += kLanes) total += g.at(row * V + l) * sums[l];
    total = warp_sum(total);
    if (lane == 0) out[row * K + c] += factor * total;
  }
};

__global__ void read_weighed_bucket_columns(BucketLists lists, int64_t columns, int64_t V,
                                            int64_t K, float factor, StoredValues g, StoredValues v,
                                            StoredValues x, float* out) {
  SharedArena arena;
  const WarpFloats shared(arena, V);
  const int64_t item = global_warp();
  if (item >= columns) return;
  const int64_t list = item / K;
  for_each_bucket(
      lists, list,
      WeighedColumn{lists, list, item % K, V, K, factor, g, v, x, out, shared.mine(), warp_lane()});
}

}  // namespace

void hash_codes(const Tensor& x, const Tensor& planes, const Tensor& mask, int64_t bits,
                const Tensor& codes) {
  const int64_t H = x.size(2), K = x.size(3), hashes = codes.size(3);
  const StoredValues from = stored_values(x);
  const float* normals = pointer<float>(planes);
  const uint8_t* valid = pointer_or_null<uint8_t>(mask);
  int32_t* to = pointer<int32_t>(codes);
  for_each("hash_codes", codes.elements(), [=] __device__(int64_t i) {
    const int64_t vector = i / hashes, h = vector % H;
    if (!is_set(valid, vector / H)) {
      to[i] = -1;
      return;
    }
    int32_t code = 0;
    for (int64_t bit = 0; bit < bits; ++bit) {
      const float* normal = normals + ((h * hashes + i % hashes) * bits + bit) * K;
      double product = 0;
      for (int64_t c = 0; c < K; ++c) {
        product += static_cast<double>(from.at(vector * K + c)) * static_cast<double>(normal[c]);
      }
      code |= static_cast<int32_t>(product > 0) << bit;
    }
    to[i] = code;
  });
}

void bucket_keys(const Tensor& codes, const Tensor& segments, const Tensor& keys) {
  const int64_t T = codes.size(1), H = codes.size(2), hashes = codes.size(3);
  const Tensor spans = segments.defined() ? token_spans(segments) : Tensor();
  const int32_t* begins = pointer_or_null<int32_t>(spans);
  const int32_t* from = pointer<int32_t>(codes);
  int64_t* to = pointer<int64_t>(keys);
  for_each("bucket_keys", keys.elements(), [=] __device__(int64_t i) {
    const int64_t list = i / T, token = list / hashes / H * T + i % T;
    const int64_t place = (token * H + list / hashes % H) * hashes + list % hashes;
    to[i] = bucket_key(from[place], begins == nullptr ? 0 : begins[token]);
  });
}

void read_buckets(const BucketLists& lists, const Tensor& x, float factor, const Tensor& out) {
  const int64_t width = x.size(3), columns = x.size(0) * lists.H * width;
  if (lists.T == 0 || lists.S == 0) return;
  launch({"read_bucket_columns", blocks_for(columns, kThreads), kThreads}, read_bucket_columns,
         lists, columns, width, factor, stored_values(x), pointer<float>(out));
}

void read_weighed_buckets(const BucketLists& lists, const Tensor& g, const Tensor& v,
                          const Tensor& x, float factor, const Tensor& out) {
  const int64_t V = v.size(3), K = x.size(3), columns = x.size(0) * lists.H * K;
  if (lists.T == 0 || lists.S == 0) return;
  launch(warps("read_weighed_bucket_columns", columns, V), read_weighed_bucket_columns, lists,
         columns, V, K, factor, stored_values(g), stored_values(v), stored_values(x),
         pointer<float>(out));
}

}  // namespace linnet::cuda
