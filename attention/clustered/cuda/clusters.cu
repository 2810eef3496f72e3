#include "attention/clustered/cuda/clusters.h"

#include "attention/clustered/hamming_rule.h"
#include "attention/clustered/list_rule.h"
#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

constexpr int kThreads = 128;

void hash_vectors(const Tensor& x, const Tensor& planes, const HammingTensors& all) {
  const int64_t H = x.size(2), K = x.size(3), bits = planes.size(0);
  const StoredValues from = stored_values(x);
  const float* normals = pointer<float>(planes);
  const uint8_t* valid = pointer_or_null<uint8_t>(all.mask);
  int64_t* codes = pointer<int64_t>(all.codes);
  for_each("hash_vectors", all.codes.elements(), [=] __device__(int64_t i) {
    int64_t code = 0;
    for (int64_t bit = 0; (valid == nullptr || valid[i / H] != 0) && bit < bits; ++bit) {
      const float* normal = normals + bit * (K + 1);
      double product = 0;
      for (int64_t c = 0; c < K; ++c) {
        product += static_cast<double>(from.at(i * K + c)) * static_cast<double>(normal[c]);
      }
      code |= static_cast<int64_t>(product > static_cast<double>(normal[K])) << bit;
    }
    codes[i] = code;
  });
}

struct AddVote {
  __host__ __device__ void operator()([[maybe_unused]] int32_t* count) const {
#if defined(__CUDA_ARCH__) || !defined(__CUDACC__)
    atomicAdd(count, 1);  // of integers: the same in any order
#endif
  }
};

__global__ void search_hamming_clusters(HammingRule<float> rule, int64_t iterations) {
  const int64_t list = blockIdx.x, first = threadIdx.x, step = blockDim.x;
  const int64_t counts = rule.clusters * (rule.bits + 1);
  for (int64_t l = first; l < rule.clusters; l += step) rule.seed(list, l);
  __syncthreads();
  for (int64_t i = 1;; ++i) {
    for (int64_t t = first; t < rule.T; t += step) rule.assign(list, t);
    if (i == iterations) return;
    for (int64_t n = first; n < counts; n += step) rule.votes[list * counts + n] = 0;
    __syncthreads();
    for (int64_t t = first; t < rule.T; t += step) rule.vote(list, t, AddVote{});
    __syncthreads();
    for (int64_t l = first; l < rule.clusters; l += step) rule.move(list, l);
    __syncthreads();
  }
}

void write_scores(const Tensor& means, const Tensor& keys, const Tensor& scores) {
  const int64_t S = keys.size(1), H = keys.size(2), K = keys.size(3), C = means.size(1);
  const StoredValues left = stored_values(means), right = stored_values(keys);
  double* to = pointer<double>(scores);
  for_each("cluster_scores", scores.elements(), [=] __device__(int64_t i) {
    const int64_t c = i / S % C, h = i / S / C % H, b = i / S / C / H;
    const StoredValues mean = left.from(((b * C + c) * H + h) * K);
    const StoredValues key = right.from(((b * S + i % S) * H + h) * K);
    double product = 0;
    for (int64_t e = 0; e < K; ++e) {
      product += static_cast<double>(mean.at(e)) * static_cast<double>(key.at(e));
    }
    to[i] = product == product ? product : -std::numeric_limits<double>::infinity();
  });
}

// The best token of each thread, then the best of all.
struct Found {
  __host__ __device__ explicit Found(SharedArena& arena)
      : scores(arena.take<double>(kThreads + 1)), tokens(arena.take<int64_t>(kThreads + 1)) {}
  double* scores;
  int64_t* tokens;
};

// Whether a token comes before another: by score, then by time. None is -1.
__device__ __forceinline__ bool is_before(double score, int64_t token, double other,
                                          int64_t other_token) {
  if (token < 0 || other_token < 0) return token >= 0;
  return score > other || (score == other && token < other_token);
}

// A block loops over the scores of a cluster once for each of its best tokens.
__global__ void find_top_keys(const double* all_scores, const uint8_t* valid, int64_t S,
                              int64_t lists_of_row, int64_t count, int32_t* best) {
  SharedArena arena;
  const Found found(arena);
  const int64_t list = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const double* scores = all_scores + list * S;
  const uint8_t* mask = valid == nullptr ? nullptr : valid + list / lists_of_row * S;
  double last_score = 0;
  int64_t last = -1;
  for (int64_t n = 0; n < count; ++n) {
    double score = 0;
    int64_t token = -1;
    for (int64_t t = thread; t < S; t += kThreads) {
      if (mask != nullptr && mask[t] == 0) continue;
      if (n > 0 && (last < 0 || !is_before(last_score, last, scores[t], t))) continue;
      if (is_before(scores[t], t, score, token)) {
        score = scores[t];
        token = t;
      }
    }
    found.scores[thread] = score;
    found.tokens[thread] = token;
    __syncthreads();
    if (thread == 0) {
      for (int other = 1; other < kThreads; ++other) {
        if (is_before(found.scores[other], found.tokens[other], score, token)) {
          score = found.scores[other];
          token = found.tokens[other];
        }
      }
      found.scores[kThreads] = score;
      found.tokens[kThreads] = token;
      best[list * count + n] = static_cast<int32_t>(token);
    }
    __syncthreads();
    last_score = found.scores[kThreads];
    last = found.tokens[kThreads];
  }
}

}  // namespace

void hamming_clusters(const Tensor& x, const ClusterDraws& draws, const HammingTensors& all,
                      int64_t iterations) {
  const Tensor planes = draws.planes.to(DType::f32), starts = draws.starts.to(DType::f32);
  const Tensor spares = draws.spares.to(DType::f32);
  hash_vectors(x, planes, all);
  const HammingRule<float> rule{x.size(1),
                                x.size(2),
                                all.centroids.size(2),
                                planes.size(0),
                                pointer<float>(starts),
                                pointer<float>(spares),
                                pointer_or_null<uint8_t>(all.mask),
                                pointer<int64_t>(all.codes),
                                pointer<int64_t>(all.centroids),
                                pointer<int32_t>(all.votes),
                                pointer<int32_t>(all.result)};
  launch({"search_hamming_clusters", blocks_for(x.size(0) * x.size(2), 1), kThreads},
         search_hamming_clusters, rule, iterations);
}

void cluster_places(const Tensor& clusters, int64_t C, const Tensor& places) {
  const int64_t H = clusters.size(2);
  const int32_t* from = pointer<int32_t>(clusters);
  int32_t* to = pointer<int32_t>(places);
  for_each("cluster_places", places.elements(),
           [=] __device__(int64_t i) { to[i] = cluster_rule::place_of(from[i], i % H, C, H); });
}

void top_keys(const Tensor& means, const Tensor& keys, const Tensor& mask, const Tensor& best) {
  const int64_t S = keys.size(1), H = keys.size(2), C = means.size(1);
  const Tensor scores = Tensor::empty({keys.size(0), H, C, S}, DType::f64, keys.device());
  write_scores(means, keys, scores);
  if (best.elements() == 0) return;
  launch({"find_top_keys", blocks_for(keys.size(0) * H * C, 1), kThreads, shared_bytes<Found>()},
         find_top_keys, pointer<double>(scores), pointer_or_null<uint8_t>(mask), S, H * C,
         best.size(3), pointer<int32_t>(best));
}

void top_keys_hidden(const Tensor& top, const Tensor& bias) {
  const int64_t count = top.size(3), T = bias.size(3);
  const int32_t* from = pointer<int32_t>(top);
  float* to = pointer<float>(bias);
  for_each("top_keys_hidden", bias.elements(), [=] __device__(int64_t i) {
    to[i] = cluster_rule::is_top_key(from, count, T, i) ? -std::numeric_limits<float>::infinity()
                                                        : 0.0f;
  });
}

void top_keys_of_queries(const Tensor& top, const Tensor& clusters, const Tensor& index) {
  const cluster_rule::QueryLists lists{clusters.size(1),      top.size(1),
                                       top.size(2),           top.size(3),
                                       pointer<int32_t>(top), pointer<int32_t>(clusters)};
  int32_t* to = pointer<int32_t>(index);
  for_each("top_keys_of_queries", index.elements(),
           [=] __device__(int64_t i) { to[i] = lists.key(i); });
}

}  // namespace linnet::cuda
