// Parts of a softmax over slots, 64 of them each, as the first scans of backward left them -> the
// whole; see fast_backward.h. A warp for every head of a token, two slots a lane.
#include "attention/primitives/common/cuda/warp_items.h"
#include "attention/primitives/slot_attention/cuda/fast_backward.h"

namespace linnet::cuda::slot_attention_fast::backward_detail {
namespace {

__global__ void slot_attention_fast_join(const __grid_constant__ BackwardWork j, int64_t rows,
                                         int all, float scale) {
  const int64_t row = global_warp();
  if (row >= rows) return;
  const int count = (all + kSlots - 1) / kSlots;
  const auto log_sum = [&](int part) {
    const int64_t at = part * rows + row;
    return j.shifts[at] * scale + j.entropies[at];
  };
  float largest = kNothing, sum = 0;
  for (int part = 0; part < count; ++part) largest = fmaxf(largest, log_sum(part));
  if (largest == kNothing) return;  // no slot is in use: all p are 0
  for (int part = 0; part < count; ++part) sum += expf(log_sum(part) - largest);
  const float whole = largest + logf(sum);
  float shift = 0, mean = 0, entropy = 0;
  for (int part = 0; part < count; ++part) {
    const int64_t at = part * rows + row;
    const float own = log_sum(part), share = expf(own - whole);
    if (!(share > 0)) continue;
    shift += share * j.shifts[at];
    mean += share * j.means[at];
    entropy += share * (j.entropies[at] + whole - own);
  }
  for (int part = 0; part < count; ++part) {
    const int slots = min(all - part * kSlots, kSlots), slot = 2 * warp_lane();
    if (slot >= slots) continue;
    const float share = expf(log_sum(part) - whole);
    const float offset = j.means[part * rows + row] - mean;
    const int64_t at = part * rows * kSlots + row * slots + slot;
    auto* p = reinterpret_cast<uint32_t*>(j.probabilities.data + at);
    auto* dr = reinterpret_cast<uint32_t*>(j.dreads.data + at);
    const float low = low_of(*p), high = high_of(*p);  // negative: dropped
    *dr = pack(share * (low_of(*dr) + fabsf(low) * offset),
               share * (high_of(*dr) + fabsf(high) * offset));
    *p = pack(share * low, share * high);
  }
  __syncwarp();  // nobody reads the first part's any more
  if (warp_lane() != 0) return;
  j.shifts[row] = shift;
  j.means[row] = mean;
  j.entropies[row] = entropy;
}

}  // namespace

void run_join(const Backward& call, const BackwardWork& work) {
  const int64_t rows = call.q.B * call.time() * call.q.H;
  launch(warps("slot_attention_fast_join", rows, 0), slot_attention_fast_join, work, rows,
         static_cast<int>(call.logits.K), call.reading.scale);
}

}  // namespace linnet::cuda::slot_attention_fast::backward_detail
