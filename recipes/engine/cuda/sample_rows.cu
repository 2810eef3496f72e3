// Choosing a token: a block for each row of logits.
#include "recipes/engine/cuda/sample_rows.h"

#include <cstring>

#include "core/cuda/block_reduce.h"
#include "core/cuda/random.h"

namespace linnet::cuda {
namespace {

constexpr int kThreads = 512;

struct Scratch {
  __host__ __device__ explicit Scratch(SharedArena& arena)
      : largest(arena.take<float>(33)),
        total(arena.take<double>(33)),
        counts(arena.take<int64_t>(kThreads)) {}
  float* largest;
  double* total;
  int64_t* counts;  // of each thread
};

// Rises with the logit; equal ones, -0 and 0 too, have one rank.
__device__ __forceinline__ uint32_t rank_of(float logit) {
  const float value = logit + 0.0f;
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// A logit of that rank.
__device__ __forceinline__ float logit_of(uint32_t rank) {
  const uint32_t bits = (rank & 0x80000000u) != 0 ? rank & 0x7FFFFFFFu : ~rank;
  float logit;
  memcpy(&logit, &bits, sizeof(logit));
  return logit;
}

struct Row {
  const float* logits;
  int64_t words;
  // The sum of weights [words] of the tokens whose rank is at least that.
  __device__ double weight_from(uint64_t rank, const double* weights, double* scratch) const {
    double sum = 0;
    for (int64_t c = threadIdx.x; c < words; c += kThreads) {
      if (rank_of(logits[c]) >= rank) sum += weights[c];
    }
    return block_sum(sum, scratch);
  }
  // The token of that rank that has `before` others before it, or the last one.
  __device__ int32_t token_of(uint32_t rank, int64_t before, int64_t* counts) const {
    const int64_t begin = words * threadIdx.x / kThreads;
    const int64_t end = words * (threadIdx.x + 1) / kThreads;
    int64_t count = 0;
    for (int64_t c = begin; c < end; ++c) count += rank_of(logits[c]) == rank ? 1 : 0;
    counts[threadIdx.x] = count;
    __syncthreads();
    int32_t last = -1;
    if (threadIdx.x != 0) return last;
    for (int64_t thread = 0; thread < kThreads && before >= 0; ++thread) {
      if (counts[thread] == 0) continue;
      for (int64_t c = words * thread / kThreads; c < words * (thread + 1) / kThreads; ++c) {
        if (rank_of(logits[c]) != rank || before < 0) continue;
        last = static_cast<int32_t>(c);
        --before;
      }
    }
    return last;
  }
};

// Likelier tokens come first. weights [words] are written.
__device__ int32_t draw_token(const Row& row, float largest, double temperature,
                              const int64_t* draw, double* weights, const Scratch& scratch) {
  const auto weight_of = [largest, temperature](float logit) {
    return exp((static_cast<double>(logit) - static_cast<double>(largest)) / temperature);
  };
  double mass = 0;
  for (int64_t c = threadIdx.x; c < row.words; c += kThreads) {
    weights[c] = weight_of(row.logits[c]);
    mass += weights[c];
  }
  mass = block_sum(mass, scratch.total);
  const RandomKey key{static_cast<uint64_t>(draw[0]), static_cast<uint64_t>(draw[1]),
                      static_cast<uint64_t>(draw[2])};
  const double left = key.uniform(static_cast<uint64_t>(draw[3])) * mass;
  // The largest rank from which on they weigh more than `left`, bit by bit.
  uint32_t rank = 0;
#pragma unroll 1
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t higher = rank | (1u << bit);
    if (row.weight_from(higher, weights, scratch.total) > left) rank = higher;
  }
  const double above = row.weight_from(uint64_t{rank} + 1, weights, scratch.total);
  const double weight = weight_of(logit_of(rank));  // of each token of that rank
  const double before = weight > 0 ? floor((left - above) / weight) : 0;
  return row.token_of(rank, static_cast<int64_t>(before), scratch.counts);
}

__global__ void choose_tokens(const float* logits, int64_t words, const double* temperatures,
                              int64_t* draws, double* weights, int32_t* positions,
                              int32_t* tokens) {
  SharedArena arena;
  const Scratch scratch(arena);
  const int64_t at = blockIdx.x;
  const Row row{logits + at * words, words};
  float largest = -INFINITY;
  double nans = 0;
  for (int64_t c = threadIdx.x; c < words; c += kThreads) {
    largest = fmaxf(largest, row.logits[c]);
    if (row.logits[c] != row.logits[c]) nans += 1;
  }
  largest = block_max(largest, scratch.largest);
  nans = block_sum(nans, scratch.total);
  const double temperature = temperatures[at];
  int64_t* draw = draws + at * kDrawValues;
  int32_t token = kNothingToDraw;
  if (nans > 0) {
    token = kLogitIsNan;
  } else if (temperature == 0) {
    token = row.token_of(rank_of(largest), 0, scratch.counts);
  } else if (largest > -INFINITY && largest < INFINITY) {
    token = draw_token(row, largest, temperature, draw, weights + at * words, scratch);
  }
  if (threadIdx.x != 0) return;
  tokens[at] = token;
  draw[3] += 1;
  positions[at] += 1;
}

}  // namespace

void sample_rows(const Tensor& logits, const Tensor& temperatures, const Tensor& draws,
                 const Tensor& weights, const Tensor& positions, const Tensor& tokens) {
  launch({"choose_tokens", blocks_for(logits.size(0), 1), kThreads, shared_bytes<Scratch>()},
         choose_tokens, pointer<float>(logits), logits.size(1), pointer<double>(temperatures),
         pointer<int64_t>(draws), pointer<double>(weights), pointer<int32_t>(positions),
         pointer<int32_t>(tokens));
}

}  // namespace linnet::cuda
