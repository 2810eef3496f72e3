// Reads of the orthogonal memory: one warp per token and head.
#include "attention/primitives/common/row_dropout.h"
#include "attention/primitives/orthogonal_memory/cuda/kernels.h"
#include "core/cuda/block_reduce.h"
#include "core/cuda/kernel.h"
#include "core/cuda/random.h"

namespace linnet::cuda::orthogonal_memory_detail {
namespace {

constexpr int kWarps = 8;  // of a block

struct Reads {
  Sizes sizes;
  const int64_t* tokens;
  const uint8_t* mask;
  float scale;
  const float* sums;
  float* projected;
  bool drops;
  RowDropout dropout;
  const int64_t* examples;
  int64_t time_offset;

  // The factor of dropout on the weight of basis row l, for a token's head.
  __device__ float kept(int64_t row, int64_t l) const {
    if (!drops) return 1.0f;
    RowDropout draws = dropout;
    draws.key = key_of_step(draws.key);
    const int64_t token = row / sizes.heads, channel = row % sizes.heads * sizes.rank + l;
    const int64_t b = token / sizes.queries;
    return draws.factor(draws.words(examples != nullptr ? examples[b] : b,
                                    time_offset + token % sizes.queries, channel),
                        channel);
  }
};

Reads reads_of(const Sizes& sizes, const Plan& plan, const OrthogonalMemoryContext& context,
               const Tensor& sums, const Tensor& projected) {
  const OrthogonalMemoryOptions& options = context.options;
  return {sizes,
          pointer<const int64_t>(plan.tokens),
          pointer_or_null<const uint8_t>(context.query_mask),
          static_cast<float>(options.scale),
          pointer<const float>(sums),
          pointer<float>(projected),
          options.dropout > 0,
          RowDropout(options.dropout, options.dropout_key, sizes.heads * sizes.rank),
          pointer_or_null<const int64_t>(context.place.examples),
          context.place.time_offset};
}

// One token's head: its mean is factor * sums, its weights exp(logit - shift) * norm.
struct Reader {
  const float* sums;
  const float* projected;
  float factor = 0, scale, shift = 0, norm = 0;
  bool empty;

  __device__ Reader(const Reads& reads, int64_t row) : scale(reads.scale) {
    const Sizes& s = reads.sizes;
    const int64_t token = row / s.heads, head = row % s.heads;
    const int64_t reader = s.sums_per_token ? token : token / s.queries;
    sums = reads.sums + (reader * s.memories + (s.memories == 1 ? 0 : head)) * s.rank;
    projected = reads.projected + row * s.rank;
    const int64_t seen = reads.tokens[token];
    empty = seen == 0 || (reads.mask != nullptr && reads.mask[token] == 0);
    if (empty) return;  // alike in all lanes
    factor = 1.0f / static_cast<float>(seen);
    float largest = -std::numeric_limits<float>::infinity(), total = 0;
    for (int64_t l = threadIdx.x; l < s.rank; l += 32) largest = fmaxf(largest, logit(l));
    shift = warp_max(largest);
    for (int64_t l = threadIdx.x; l < s.rank; l += 32) total += expf(logit(l) - shift);
    norm = 1.0f / warp_sum(total);
  }
  __device__ float mean(int64_t l) const { return factor * sums[l]; }
  __device__ float logit(int64_t l) const { return scale * mean(l) * projected[l]; }
  __device__ float weight(int64_t l) const { return expf(logit(l) - shift) * norm; }
};

__global__ void orthogonal_memory_read(Reads reads, int64_t rows) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (row >= rows) return;
  const Reader reader(reads, row);
  float* out = reads.projected + row * reads.sizes.rank;
  for (int64_t l = threadIdx.x; l < reads.sizes.rank; l += 32) {
    out[l] = reader.empty ? 0.0f : reads.kept(row, l) * reader.weight(l) * reader.mean(l);
  }
}

// With a = scale m y (y the projected query), p the softmax of a and u = B dy: dp = m u,
// da = p (dp - p . dp), dm = p u + scale y da, dy = scale m da. The factors of dropout on p go to
// u.
__global__ void orthogonal_memory_read_gradients(Reads reads, int64_t rows, float* dprojected,
                                                 float* weights) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (row >= rows) return;
  const int64_t rank = reads.sizes.rank;
  const Reader reader(reads, row);
  float* y = reads.projected + row * rank;
  float* u = dprojected + row * rank;
  float along = 0;
  for (int64_t l = threadIdx.x; l < rank && !reader.empty; l += 32) {
    along += reads.kept(row, l) * reader.weight(l) * reader.mean(l) * u[l];
  }
  along = warp_sum(along);
  for (int64_t l = threadIdx.x; l < rank; l += 32) {
    if (reader.empty) {
      y[l] = u[l] = weights[row * rank + l] = 0;
      continue;
    }
    const float p = reader.weight(l), m = reader.mean(l), kept = reads.kept(row, l);
    const float du = kept * u[l], da = p * (m * du - along);
    u[l] = reader.factor * (p * du + reader.scale * y[l] * da);
    y[l] = reader.scale * m * da;
    weights[row * rank + l] = kept * p * m;
  }
}

}  // namespace

void read_weights(const Sizes& sizes, const Plan& plan, const OrthogonalMemoryContext& context,
                  const Tensor& sums, const Tensor& projected) {
  const int64_t rows = sizes.rows * sizes.queries * sizes.heads;
  launch({"orthogonal_memory_read", blocks_for(rows, kWarps), dim3(32, kWarps)},
         orthogonal_memory_read, reads_of(sizes, plan, context, sums, projected), rows);
}

void read_gradients(const Sizes& sizes, const Plan& plan, const OrthogonalMemoryContext& context,
                    const Tensor& sums, const Tensor& projected, const Tensor& dprojected,
                    const Tensor& weights) {
  const int64_t rows = sizes.rows * sizes.queries * sizes.heads;
  launch({"orthogonal_memory_read_gradients", blocks_for(rows, kWarps), dim3(32, kWarps)},
         orthogonal_memory_read_gradients, reads_of(sizes, plan, context, sums, projected), rows,
         pointer<float>(dprojected), pointer<float>(weights));
}

}  // namespace linnet::cuda::orthogonal_memory_detail
