// Slot attention: the softmax over the slots that a token reads, and its gradient. A warp for
// every head of a token.
#include "attention/primitives/common/cuda/warp_items.h"
#include "attention/primitives/common/row_dropout.h"
#include "attention/primitives/slot_attention/cuda/weights.h"
#include "core/cuda/random.h"

namespace linnet::cuda {
namespace {

// The heads of all tokens. A softmax belongs to one token, whichever runs of tokens are scanned, so
// that nothing of SlotScan but the query mask is read.
struct Rows {
  SlotAttentionOptions options;
  int64_t count, T, H, N;
  const float* factors;
  const uint8_t* query_mask;
  // For dropout.
  const int64_t* examples;
  int64_t time_offset;
  RowDropout dropout;

  // The logit of a slot from q . sums; only of those in use.
  __device__ float logit(float factor, float product) const {
    return static_cast<float>(options.scale) * factor * product;
  }
  __device__ bool used(float factor) const { return !options.mask_empty || factor != 0; }
  // The factor of dropout on the probability of slot l.
  __device__ float kept(int64_t row, int64_t l) const {
    if (!(options.dropout > 0)) return 1;
    const int64_t token = row / H, channel = row % H * N + l;
    RowDropout draws = dropout;
    draws.key = key_of_step(draws.key);
    const int64_t example = examples != nullptr ? examples[token / T] : token / T;
    return draws.factor(draws.words(example, time_offset + token % T, channel), channel);
  }
};

Rows rows_of(const SlotAttentionContext& context, const Tensor& factors) {
  const int64_t N = factors.size(3);
  const SlotAttentionOptions& options = context.options;
  return {options,
          N == 0 ? 0 : factors.elements() / N,
          factors.size(1),
          factors.size(2),
          N,
          pointer<float>(factors),
          pointer_or_null<uint8_t>(context.query_mask),
          pointer_or_null<int64_t>(context.place.examples),
          context.place.time_offset,
          RowDropout(options.dropout, options.dropout_key, factors.size(2) * N)};
}

// exp(logit - shift) * inverse is the probability of a slot; inverse 0: no slot is in use.
struct Softmax {
  float shift, inverse;
};
__device__ Softmax softmax_of(const Rows& rows, const float* factors, const float* products) {
  float largest = -kInfinity, sum = 0;
  bool any = false;
  for (int64_t l = warp_lane(); l < rows.N; l += kLanes) {
    if (!rows.used(factors[l])) continue;
    any = true;
    largest = fmaxf(largest, rows.logit(factors[l], products[l]));
  }
  largest = warp_max(largest);
  if (largest == -kInfinity) largest = 0;
  for (int64_t l = warp_lane(); l < rows.N; l += kLanes) {
    if (rows.used(factors[l])) sum += expf(rows.logit(factors[l], products[l]) - largest);
  }
  sum = warp_sum(sum);
  return {largest, __any_sync(~0u, any) != 0 ? 1 / sum : 0.0f};
}

__device__ float probability(const Rows& rows, const Softmax& softmax, float factor,
                             float product) {
  if (!rows.used(factor)) return 0;
  return expf(rows.logit(factor, product) - softmax.shift) * softmax.inverse;
}

__global__ void slot_probabilities(Rows rows, float* all_products) {
  const int64_t row = global_warp();
  if (row >= rows.count) return;
  const float* factors = rows.factors + row * rows.N;
  float* products = all_products + row * rows.N;
  if (!is_set(rows.query_mask, row / rows.H)) {
    for (int64_t l = warp_lane(); l < rows.N; l += kLanes) products[l] = 0;
    return;
  }
  const Softmax softmax = softmax_of(rows, factors, products);
  for (int64_t l = warp_lane(); l < rows.N; l += kLanes) {
    products[l] =
        factors[l] * rows.kept(row, l) * probability(rows, softmax, factors[l], products[l]);
  }
}

__global__ void slot_probability_gradients(Rows rows, float* all_products, float* all_dreads,
                                           float* all_to_sums) {
  const int64_t row = global_warp();
  if (row >= rows.count) return;
  const float* factors = rows.factors + row * rows.N;
  float* products = all_products + row * rows.N;
  float* dreads = all_dreads + row * rows.N;
  float* to_sums = all_to_sums + row * rows.N;
  if (!is_set(rows.query_mask, row / rows.H)) {
    for (int64_t l = warp_lane(); l < rows.N; l += kLanes) {
      products[l] = dreads[l] = to_sums[l] = 0;
    }
    return;
  }
  const Softmax softmax = softmax_of(rows, factors, products);
  float mean = 0;
  for (int64_t l = warp_lane(); l < rows.N; l += kLanes) {
    const float weight = rows.kept(row, l) * factors[l];
    mean += probability(rows, softmax, factors[l], products[l]) * weight * dreads[l];
  }
  mean = warp_sum(mean);
  const bool sums_matter = rows.options.normalizer == SlotNormalizer::read_time;
  for (int64_t l = warp_lane(); l < rows.N; l += kLanes) {
    const float factor = factors[l], kept = rows.kept(row, l);
    const float logit = rows.used(factor) ? rows.logit(factor, products[l]) : 0;
    const float p = probability(rows, softmax, factor, products[l]);
    const float dread = kept * factor * dreads[l];
    const float dlogit = p * (dread - mean);
    const bool flat = !sums_matter || is_clamped(rows.options, factor);
    to_sums[l] = flat ? 0.0f : -factor * (dlogit * logit + p * dread);
    products[l] = static_cast<float>(rows.options.scale) * factor * dlogit;
    dreads[l] = kept * factor * p;
  }
}

}  // namespace

void slot_softmax(const SlotAttentionContext& context, const Tensor& factors,
                  const Tensor& products) {
  const Rows rows = rows_of(context, factors);
  launch(warps("slot_probabilities", rows.count, 0), slot_probabilities, rows,
         pointer<float>(products));
}

Tensor slot_read_gradients(const SlotAttentionContext& context, const Tensor& factors,
                           const Tensor& products, const Tensor& dreads) {
  const Rows rows = rows_of(context, factors);
  const Tensor to_sums = Tensor::empty(factors.shape(), DType::f32, factors.device());
  launch(warps("slot_probability_gradients", rows.count, 0), slot_probability_gradients, rows,
         pointer<float>(products), pointer<float>(dreads), pointer<float>(to_sums));
  return to_sums;
}

}  // namespace linnet::cuda
