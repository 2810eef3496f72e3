// See fast_starts.h. Bytes of a memory's element: 8 per split, and 8 of its slot's normalizer.
#include "attention/primitives/slot_attention/cuda/fast_starts.h"

#include <limits>

#include "core/cuda/for_each.h"

namespace linnet::cuda::slot_attention_fast {
namespace {

// Memories of `count` splits.
struct Memories {
  Tensor keys, values, mass;

  Memories(const Call& call, int64_t count) {
    const int64_t B = count * call.memories(), H = call.q.H, N = call.logits.K;
    keys = Tensor::empty({B, H, N, call.k.K}, DType::f32, call.device);
    values = Tensor::empty({B, H, N, call.v.K}, DType::f32, call.device);
    mass = Tensor::empty({B, H, N}, DType::f64, call.device);
  }
  SlotAttentionState<float> state() const {
    return {pointer<float>(keys), pointer<float>(values), pointer<double>(mass)};
  }
};

// Writes the memory before split n, of those that `own` splits made, for n = first to own; the last
// one has them all. A thread for each element.
void join(const Call& call, const SlotAttentionState<float>& written, int64_t own, int64_t first,
          const SlotAttentionState<float>& to) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const int64_t K = call.k.K, V = call.v.K, slots = call.memories() * call.q.H * call.logits.K;
  const SlotAttentionState<const float> carried = call.state_in;
  for_each("slot_attention_fast_starts", slots * (K + V + 1), [=] __device__(int64_t i) {
    const int64_t slot = i / (K + V + 1), column = i % (K + V + 1), width = column < K ? K : V;
    const bool of_mass = column == K + V;
    const int64_t at = slot * width + (column < K ? column : column - K), all = slots * width;
    const float* from = column < K ? carried.keys : carried.values;
    const float* added = column < K ? written.keys : written.values;
    float* means = column < K ? to.keys : to.values;
    double largest = carried.mass == nullptr ? kNone : carried.mass[slot];
    double sum = largest == kNone ? 0 : 1, x = 0;  // relative to exp(largest)
    if (sum > 0 && !of_mass) x = from[at];
    for (int64_t n = 0; n <= own; ++n) {
      if (n >= first && of_mass) {
        if (to.mass != nullptr) to.mass[(n - first) * slots + slot] = largest + log(sum);
      } else if (n >= first && means != nullptr) {
        means[(n - first) * all + at] = sum > 0 ? static_cast<float>(x / sum) : 0.0f;
      }
      if (n == own) return;
      const double mass = written.mass[n * slots + slot];
      if (mass == kNone) continue;
      const bool rises = mass > largest;
      const double less = exp(rises ? largest - mass : mass - largest);
      const double before = rises ? less : 1, weight = rises ? 1 : less;
      if (rises) largest = mass;
      sum = sum * before + weight;
      if (!of_mass) x = x * before + weight * added[n * all + at];
    }
  });
}

// The same of given weights: memories are sums.
void add_up(const Call& call, const SlotAttentionState<float>& written, int64_t own, int64_t first,
            const SlotAttentionState<float>& to) {
  const int64_t K = call.k.K, V = call.v.K, slots = call.memories() * call.q.H * call.logits.K;
  const SlotAttentionState<const float> carried = call.state_in;
  for_each("slot_attention_given_starts", slots * (K + V + 1), [=] __device__(int64_t i) {
    const int64_t slot = i / (K + V + 1), column = i % (K + V + 1), width = column < K ? K : V;
    if (column == K + V) {
      double sum = carried.mass == nullptr ? 0 : carried.mass[slot];
      for (int64_t n = 0; n <= own; ++n) {
        if (n >= first && to.mass != nullptr) to.mass[(n - first) * slots + slot] = sum;
        if (n < own) sum += written.mass[n * slots + slot];
      }
      return;
    }
    const int64_t at = slot * width + (column < K ? column : column - K), all = slots * width;
    const float* from = column < K ? carried.keys : carried.values;
    const float* added = column < K ? written.keys : written.values;
    float* sums = column < K ? to.keys : to.values;
    if (sums == nullptr) return;
    double sum = from == nullptr ? 0 : from[at];
    for (int64_t n = 0; n <= own; ++n) {
      if (n >= first) sums[(n - first) * all + at] = static_cast<float>(sum);
      if (n < own) sum += added[n * all + at];
    }
  });
}

void join_any(const Call& call, const SlotAttentionState<float>& written, int64_t own,
              int64_t first, const SlotAttentionState<float>& to) {
  return call.given.are ? add_up(call, written, own, first, to)
                        : join(call, written, own, first, to);
}

}  // namespace

Starts::Starts(const Call& call, const tensor_core::SplitSizes& splits, bool looked_at)
    : splits_(splits) {
  if (splits.count == 1 || call.k.T == 0 || !looked_at) return;
  const int64_t own = splits.count - 1;  // nobody begins with the last one's
  const Memories written(call, own), starts(call, splits.count);
  write_splits(call, splits.tokens, own, written.state());
  join_any(call, written.state(), own, 0, starts.state());
  keys_ = starts.keys;
  values_ = starts.values;
  mass_ = starts.mass;
}

void Starts::give(Call& call) const {
  if (splits_.count == 1) return;
  call.split_tokens = splits_.tokens;
  if (!mass_.defined()) return;
  call.state_in = {pointer<const float>(keys_), pointer<const float>(values_), normalizers()};
}

const double* Starts::normalizers() const {
  return pointer_or_null<const double>(mass_);
}

void write_in_splits(const Forward& call, const tensor_core::SplitSizes& splits) {
  const Memories written(call, splits.count);
  write_splits(call, splits.tokens, splits.count, written.state());
  join_any(call, written.state(), splits.count, splits.count, call.state_out);
}

}  // namespace linnet::cuda::slot_attention_fast
