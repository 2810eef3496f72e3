// Reads of the orthogonal memory: one warp per token and head.
#include "attention/primitives/orthogonal_memory/cuda/kernels.h"
#include "core/cuda/block_reduce.h"
#include "core/cuda/kernel.h"
#include "core/cuda/random.h"

namespace linnet::cuda::orthogonal_memory_detail {
namespace {

constexpr int kWarps = 8;  // of a block

// The factor of dropout on the weight of basis row l, for a token's head.
__device__ float kept_share(const Problem& p, int64_t row, int64_t l) {
  if (!p.drops) return 1.0f;
  RowDropout draws = p.dropout;
  draws.key = key_of_step(draws.key);
  const int64_t token = row / p.heads, channel = row % p.heads * p.rank + l;
  const int64_t b = token / p.queries;
  return draws.factor(draws.words(p.examples != nullptr ? p.examples[b] : b,
                                  p.time_offset + token % p.queries, channel),
                      channel);
}

// One token's head: its mean is factor * sums, its weights exp(logit - shift) * norm.
struct Reader {
  const float* sums;
  const float* projected;
  float factor = 0, scale, shift = 0, norm = 0;
  bool empty;

  __device__ Reader(const Problem& p, const float* all_sums, const float* all_projected,
                    int64_t row)
      : projected(all_projected + row * p.rank), scale(p.scale) {
    const int64_t token = row / p.heads, head = row % p.heads;
    const int64_t reader = p.sums_per_token ? token : token / p.queries;
    sums = all_sums + (reader * p.memories + (p.memories == 1 ? 0 : head)) * p.rank;
    const int64_t seen = p.tokens[token];
    empty = seen == 0 || (p.query_mask != nullptr && p.query_mask[token] == 0);
    if (empty) return;  // alike in all lanes
    factor = 1.0f / static_cast<float>(seen);
    float largest = -std::numeric_limits<float>::infinity(), total = 0;
    for (int64_t l = threadIdx.x; l < p.rank; l += 32) largest = fmaxf(largest, logit(l));
    shift = warp_max(largest);
    for (int64_t l = threadIdx.x; l < p.rank; l += 32) total += expf(logit(l) - shift);
    norm = 1.0f / warp_sum(total);
  }
  __device__ float mean(int64_t l) const { return factor * sums[l]; }
  __device__ float logit(int64_t l) const { return scale * mean(l) * projected[l]; }
  __device__ float weight(int64_t l) const { return expf(logit(l) - shift) * norm; }
};

__global__ void orthogonal_memory_read(const __grid_constant__ Problem p, int64_t rows,
                                       const float* sums, float* projected) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (row >= rows) return;
  const Reader reader(p, sums, projected, row);
  float* out = projected + row * p.rank;
  for (int64_t l = threadIdx.x; l < p.rank; l += 32) {
    out[l] = reader.empty ? 0.0f : kept_share(p, row, l) * reader.weight(l) * reader.mean(l);
  }
}

// With a = scale m y (y the projected query), p the softmax of a and u = B dy: dp = m u,
// da = p (dp - p . dp), dm = p u + scale y da, dy = scale m da. The factors of dropout on p go to
// u.
__global__ void orthogonal_memory_read_gradients(const __grid_constant__ Problem a, int64_t rows,
                                                 const float* sums, float* projected,
                                                 float* dprojected, float* weights) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (row >= rows) return;
  const int64_t rank = a.rank;
  const Reader reader(a, sums, projected, row);
  float* y = projected + row * rank;
  float* u = dprojected + row * rank;
  float along = 0;
  for (int64_t l = threadIdx.x; l < rank && !reader.empty; l += 32) {
    along += kept_share(a, row, l) * reader.weight(l) * reader.mean(l) * u[l];
  }
  along = warp_sum(along);
  for (int64_t l = threadIdx.x; l < rank; l += 32) {
    if (reader.empty) {
      y[l] = u[l] = weights[row * rank + l] = 0;
      continue;
    }
    const float p = reader.weight(l), m = reader.mean(l), kept = kept_share(a, row, l);
    const float du = kept * u[l], da = p * (m * du - along);
    u[l] = reader.factor * (p * du + reader.scale * y[l] * da);
    y[l] = reader.scale * m * da;
    weights[row * rank + l] = kept * p * m;
  }
}

}  // namespace

void read_weights(const Problem& p, const Tensor& sums, const Tensor& projected) {
  const int64_t rows = p.rows * p.queries * p.heads;
  launch({"orthogonal_memory_read", blocks_for(rows, kWarps), dim3(32, kWarps)},
         orthogonal_memory_read, p, rows, pointer<const float>(sums), pointer<float>(projected));
}

void read_gradients(const Problem& p, const Tensor& sums, const Tensor& projected,
                    const Tensor& dprojected, const Tensor& weights) {
  const int64_t rows = p.rows * p.queries * p.heads;
  launch({"orthogonal_memory_read_gradients", blocks_for(rows, kWarps), dim3(32, kWarps)},
         orthogonal_memory_read_gradients, p, rows, pointer<const float>(sums),
         pointer<float>(projected), pointer<float>(dprojected), pointer<float>(weights));
}

}  // namespace linnet::cuda::orthogonal_memory_detail
