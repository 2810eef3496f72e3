#include "attention/abc_cluster/cuda/clusters.h"

#include "attention/abc_cluster/hash_clustering.h"
#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

// Products of two floats are exact in double, so that signs are those of the CPU.
void hash_keys(const Tensor& keys, const Tensor& planes, const HashClusterTensors& all) {
  const int64_t H = keys.size(2), K = keys.size(3), bits = planes.size(0);
  const StoredValues from = stored_values(keys);
  const float* normals = pointer<float>(planes);
  const uint8_t* valid = pointer_or_null<uint8_t>(all.mask);
  int64_t* codes = pointer<int64_t>(all.codes);
  for_each("hash_keys", all.codes.elements(), [=] __device__(int64_t i) {
    int64_t code = 0;
    for (int64_t bit = 0; (valid == nullptr || valid[i / H] != 0) && bit < bits; ++bit) {
      double product = 0;
      for (int64_t c = 0; c < K; ++c) {
        product +=
            static_cast<double>(from.at(i * K + c)) * static_cast<double>(normals[bit * K + c]);
      }
      code |= static_cast<int64_t>(product > 0) << bit;
    }
    codes[i] = code;
  });
}

constexpr int kLanes = 32;

struct Candidates {
  __host__ __device__ explicit Candidates(SharedArena& arena)
      : distances(arena.take<double>(kLanes)), slots(arena.take<int64_t>(kLanes)) {}
  double* distances;
  int64_t* slots;
};

struct NearestArrays {
  int64_t S, H, K, slots;
  StoredValues keys;
  const uint8_t* valid;
  const int32_t* ids;
  const float* sums_in;
  const double* counts_in;
  double *sums, *counts;  // [B,H,slots,K], [B,H,slots]
  int32_t* clusters;
};

// A warp for every row and head: its lanes split the slots in the search for the nearest, and the
// channels in the sum of keys.
__global__ void find_nearest_clusters(NearestArrays a) {
  SharedArena arena;
  const Candidates shared(arena);
  const int64_t item = blockIdx.x, b = item / a.H, h = item % a.H;
  const int lane = static_cast<int>(threadIdx.x);
  double* sums = a.sums + item * a.slots * a.K;
  double* counts = a.counts + item * a.slots;
  for (int64_t l = lane; l < a.slots; l += kLanes) {
    counts[l] = a.counts_in != nullptr ? a.counts_in[item * a.slots + l] : 0.0;
  }
  for (int64_t i = lane; i < a.slots * a.K; i += kLanes) {
    sums[i] = a.sums_in != nullptr ? a.sums_in[item * a.slots * a.K + i] : 0.0f;
  }
  __syncwarp();
  for (int64_t token = b * a.S; token < (b + 1) * a.S; ++token) {
    if (a.ids != nullptr && token > b * a.S && a.ids[token] != a.ids[token - 1]) {
      for (int64_t l = lane; l < a.slots; l += kLanes) counts[l] = 0;
      for (int64_t i = lane; i < a.slots * a.K; i += kLanes) sums[i] = 0;
      __syncwarp();
    }
    if (a.valid != nullptr && a.valid[token] == 0) {
      if (lane == 0) a.clusters[token * a.H + h] = -1;
      continue;
    }
    const StoredValues key = a.keys.from((token * a.H + h) * a.K);
    double nearest = std::numeric_limits<double>::infinity();
    int64_t chosen = 0;
    for (int64_t l = lane; l < a.slots && nearest >= 0; l += kLanes) {
      double distance = counts[l] == 0 ? -1 : 0;
      for (int64_t c = 0; distance >= 0 && c < a.K; ++c) {
        const double difference = key.at(c) - sums[l * a.K + c] / counts[l];
        distance += difference * difference;
      }
      if (distance < nearest) {
        nearest = distance;
        chosen = l;
      }
    }
    shared.distances[lane] = nearest;
    shared.slots[lane] = chosen;
    __syncwarp();
    for (int other = 0; other < kLanes; ++other) {
      const double distance = shared.distances[other];
      const bool tie = distance == nearest && shared.slots[other] < chosen;
      if (distance < nearest || tie) {
        nearest = distance;
        chosen = shared.slots[other];
      }
    }
    for (int64_t c = lane; c < a.K; c += kLanes) sums[chosen * a.K + c] += key.at(c);
    if (lane == 0) {
      counts[chosen] += 1;
      a.clusters[token * a.H + h] = static_cast<int32_t>(chosen);
    }
    __syncwarp();
  }
}

}  // namespace

void hash_clusters(const Tensor& keys, const Tensor& planes, const HashClusterTensors& all,
                   int64_t iterations) {
  hash_keys(keys, planes.to(DType::f32), all);
  const HashClustering steps{keys.size(1),
                             keys.size(2),
                             all.centroids.size(2),
                             planes.size(0),
                             pointer_or_null<int32_t>(all.spans),
                             pointer_or_null<int32_t>(all.sequence),
                             pointer_or_null<uint8_t>(all.mask),
                             pointer<int64_t>(all.codes),
                             pointer<int64_t>(all.centroids),
                             pointer<uint8_t>(all.votes),
                             pointer<int32_t>(all.clusters)};
  const int64_t slots = all.centroids.elements(), keys_of_heads = all.clusters.elements();
  for_each("seed_clusters", slots, [=] __device__(int64_t i) { steps.seed(i); });
  for (int64_t i = 0;; ++i) {
    for_each("assign_clusters", keys_of_heads,
             [=] __device__(int64_t item) { steps.assign(item); });
    if (i == iterations) return;
    for_each("vote_clusters", all.votes.elements(),
             [=] __device__(int64_t item) { steps.vote(item); });
    for_each("move_clusters", slots, [=] __device__(int64_t item) { steps.move(item); });
  }
}

void nearest_clusters(const Tensor& keys, const Tensor& mask, const Tensor& segments,
                      const Tensor& sums, const Tensor& counts, int64_t slots,
                      const Tensor& clusters) {
  const int64_t B = keys.size(0), H = keys.size(2), K = keys.size(3);
  const Tensor running = Tensor::empty({B, H, slots, K}, DType::f64, keys.device());
  const Tensor distances = Tensor::empty({B, H, slots}, DType::f64, keys.device());
  launch(
      {"find_nearest_clusters", blocks_for(B * H, 1), kLanes, shared_bytes<Candidates>()},
      find_nearest_clusters,
      NearestArrays{keys.size(1), H, K, slots, stored_values(keys), pointer_or_null<uint8_t>(mask),
                    pointer_or_null<int32_t>(segments), pointer_or_null<float>(sums),
                    pointer_or_null<double>(counts), pointer<double>(running),
                    pointer<double>(distances), pointer<int32_t>(clusters)});
}

}  // namespace linnet::cuda
