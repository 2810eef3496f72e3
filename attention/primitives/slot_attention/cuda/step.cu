// One token of slot attention: a block has a head's memory. The token is written to every slot; a
// warp alternates over slots for the keys, whose lanes are channels, and then its share of the
// slots for 32 channels of the values.
#include "attention/primitives/slot_attention/cuda/step.h"

#include "attention/primitives/common/cuda/warp_items.h"
#include "attention/primitives/slot_attention/cuda/weights.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

constexpr int kStepWarps = 8;
constexpr int kThreads = kStepWarps * kLanes;

struct Step {
  SlotAttentionOptions options;
  StoredValues q, k, v, logits;
  const uint8_t *query_mask, *key_mask;
  const float *keys_in, *values_in;
  const double* mass_in;
  float *keys_out, *values_out;
  double* mass_out;
  StoredResults o;
  int heads, N, K, V;
};

struct Layout {
  __host__ __device__ Layout(SharedArena& arena, int N, int K)
      : query(arena.take<float>(static_cast<size_t>(K))),
        key(arena.take<float>(static_cast<size_t>(K))),
        weights(arena.take<float>(static_cast<size_t>(N))),
        decays(arena.take<float>(static_cast<size_t>(N))),
        factors(arena.take<float>(static_cast<size_t>(N))),
        reads(arena.take<float>(static_cast<size_t>(N))),
        sums(arena.take<float>(kThreads)),
        scratch(arena.take<float>(33)) {}
  float *query, *key;
  float *weights, *decays, *factors;  // of slots, as slot_weights makes them
  float* reads;                       // q . keys, then the factor of a slot's values
  float *sums, *scratch;
};

// How the token changes slot l, and its normalizer after it.
__device__ __forceinline__ void write_slot(const Step& a, const Layout& shared, int64_t head, int l,
                                           bool writes) {
  double mass = empty_normalizer(a.options);
  if (a.mass_in != nullptr) mass = a.mass_in[head * a.N + l];
  SlotWrite write{0, 1};
  if (writes) write = write_to_slot(a.options, a.logits.at(head * a.N + l), mass);
  shared.weights[l] = write.weight;
  shared.decays[l] = write.decay;
  shared.factors[l] = read_factor(a.options, mass);
  a.mass_out[head * a.N + l] = mass;
}

// reads <- factor times the softmax over the slots in use.
__device__ __forceinline__ void weigh_slots(const Step& a, const Layout& shared, bool reads) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto used = [&](int l) { return !a.options.mask_empty || shared.factors[l] != 0; };
  const auto logit = [&](int l) {
    return static_cast<float>(a.options.scale) * shared.factors[l] * shared.reads[l];
  };
  float largest = -kInfinity, sum = 0;
  for (int l = thread; l < a.N; l += kThreads) {
    if (used(l)) largest = fmaxf(largest, logit(l));
  }
  largest = block_max(largest, shared.scratch);
  if (largest == -kInfinity) largest = 0;
  for (int l = thread; l < a.N; l += kThreads) {
    if (used(l)) sum += expf(logit(l) - largest);
  }
  sum = block_sum(sum, shared.scratch);
  for (int l = thread; l < a.N; l += kThreads) {
    const bool is_read = reads && used(l);
    shared.reads[l] = is_read ? shared.factors[l] * expf(logit(l) - largest) / sum : 0.0f;
  }
}

__global__ void slot_attention_one_token(Step a) {
  SharedArena arena;
  const Layout shared(arena, a.N, a.K);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kLanes, lane = warp_lane();
  const int64_t head = blockIdx.x, row = head / a.heads;
  const bool reads = is_set(a.query_mask, row), writes = is_set(a.key_mask, row);
  for (int c = thread; c < a.K; c += kThreads) {
    shared.query[c] = reads ? a.q.at(head * a.K + c) : 0.0f;
    shared.key[c] = writes ? a.k.at(head * a.K + c) : 0.0f;
  }
  for (int l = thread; l < a.N; l += kThreads) write_slot(a, shared, head, l, writes);
  __syncthreads();

  for (int l = warp; l < a.N; l += kStepWarps) {
    float product = 0;
    for (int c = lane; c < a.K; c += kLanes) {
      const int64_t at = (head * a.N + l) * a.K + c;
      float state = a.keys_in != nullptr ? decayed(shared.decays[l], a.keys_in[at]) : 0.0f;
      state += shared.weights[l] * shared.key[c];
      a.keys_out[at] = state;
      product += state * shared.query[c];
    }
    product = warp_sum(product);
    if (lane == 0) shared.reads[l] = product;
  }
  __syncthreads();
  weigh_slots(a, shared, reads);
  __syncthreads();

  for (int first = 0; first < a.V; first += kLanes) {
    const int c = first + lane;
    float sum = 0;
    if (c < a.V) {
      const float value = writes ? a.v.at(head * a.V + c) : 0.0f;
      for (int l = warp; l < a.N; l += kStepWarps) {
        const int64_t at = (head * a.N + l) * a.V + c;
        float state = a.values_in != nullptr ? decayed(shared.decays[l], a.values_in[at]) : 0.0f;
        state += shared.weights[l] * value;
        a.values_out[at] = state;
        sum += shared.reads[l] * state;
      }
    }
    shared.sums[thread] = sum;
    __syncthreads();
    if (warp == 0 && c < a.V) {
      float total = 0;
      for (int i = 0; i < kStepWarps; ++i) total += shared.sums[i * kLanes + lane];
      a.o.put(head * a.V + c, reads ? total : 0.0f);
    }
    __syncthreads();
  }
}

}  // namespace

bool is_slot_attention_step(const SlotAttentionContext& context, const SlotAttentionTensors& in) {
  return in.q.size(1) == 1 && !(context.options.dropout > 0) && !in.value_logits.defined();
}

void slot_attention_step(const SlotAttentionContext& context, const SlotAttentionTensors& in,
                         const SlotAttentionTensors& end, const Tensor& o) {
  Step a{};
  a.options = context.options;
  a.q = stored_values(in.q);
  a.k = stored_values(in.k);
  a.v = stored_values(in.v);
  a.logits = stored_values(in.logits);
  a.query_mask = pointer_or_null<const uint8_t>(context.query_mask);
  a.key_mask = pointer_or_null<const uint8_t>(context.key_mask);
  a.keys_in = pointer_or_null<const float>(in.keys);
  a.values_in = pointer_or_null<const float>(in.values);
  a.mass_in = pointer_or_null<const double>(in.mass);
  a.keys_out = pointer<float>(end.keys);
  a.values_out = pointer<float>(end.values);
  a.mass_out = pointer<double>(end.mass);
  a.o = stored_results(o);
  a.heads = static_cast<int>(in.q.size(2));
  a.N = static_cast<int>(in.logits.size(3));
  a.K = static_cast<int>(in.k.size(3));
  a.V = static_cast<int>(in.v.size(3));
  launch({"slot_attention_one_token", blocks_for(in.q.size(0) * a.heads, 1), kThreads,
          shared_bytes<Layout>(a.N, a.K)},
         slot_attention_one_token, a);
}

}  // namespace linnet::cuda
