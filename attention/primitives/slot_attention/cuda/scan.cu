// Slot attention: scans over the tokens, a warp for every slot (its lanes are channels) or for
// every channel (its lanes are slots).
#include "attention/primitives/common/cuda/warp_items.h"
#include "attention/primitives/slot_attention/cuda/weights.h"

namespace linnet::cuda {
namespace {

// Element i of an array of T.
template <typename T>
__device__ __forceinline__ float element(const void* from, int64_t i) {
  return load(static_cast<const T*>(from) + i);
}

template <typename T>
__global__ void scan_memory_slots(SlotScan a, float* products) {
  SharedArena arena;
  const WarpFloats shared(arena, a.width);
  const SlotSequences& ranges = a.sequences;
  const int64_t item = global_warp();
  if (item >= ranges.slots()) return;
  const SlotSequences::Slot slot = ranges.slot(item);
  const int lane = warp_lane();
  float* state = shared.mine();  // of this lane's channels
  for (int64_t c = lane; c < a.width; c += kLanes) {
    state[c] = a.before != nullptr ? a.before[item * a.width + c] : 0.0f;
  }
  for (int64_t t = ranges.begin(slot.n); t < ranges.end(slot.n); ++t) {
    const int64_t token = ranges.token(slot.row, t, slot.h), i = token * ranges.N + slot.l;
    if (a.weights != nullptr) {
      const bool written = is_set(a.x_mask, slot.row * ranges.T + t);
      const float weight = a.weights[i], decay = a.decays[i];
      for (int64_t c = lane; c < a.width; c += kLanes) {
        float value = decayed(decay, state[c]);
        if (written) value += weight * element<T>(a.x, token * a.width + c);
        state[c] = value;
      }
    }
    if (products == nullptr) continue;
    float total = 0;
    if (is_set(a.reader_mask, slot.row * ranges.T + t)) {
      for (int64_t c = lane; c < a.width; c += kLanes) {
        total += state[c] * element<T>(a.reader, token * a.width + c);
      }
    }
    total = warp_sum(total);
    if (lane == 0) products[i] = total;
  }
  for (int64_t c = lane; c < a.width && a.after != nullptr; c += kLanes) {
    a.after[item * a.width + c] = state[c];
  }
}

template <typename T>
__global__ void scan_memory_channels(SlotScan a, const float* passed, T* out) {
  SharedArena arena;
  const WarpFloats shared(arena, a.sequences.N);
  const SlotSequences& ranges = a.sequences;
  const int64_t item = global_warp();
  if (item >= ranges.count * ranges.H * a.width) return;
  const int64_t c = item % a.width, h = item / a.width % ranges.H;
  const int64_t n = item / a.width / ranges.H, row = ranges.row(n), N = ranges.N;
  const int64_t first = (n * ranges.H + h) * N * a.width + c;  // of slot 0 in before and after
  const int lane = warp_lane();
  float* state = shared.mine();  // of this lane's slots
  for (int64_t l = lane; l < N; l += kLanes) {
    state[l] = a.before != nullptr ? a.before[first + l * a.width] : 0.0f;
  }
  for (int64_t t = ranges.begin(n); t < ranges.end(n); ++t) {
    const int64_t token = ranges.token(row, t, h);
    if (a.weights != nullptr) {
      const bool written = is_set(a.x_mask, row * ranges.T + t);
      const float x = written ? element<T>(a.x, token * a.width + c) : 0.0f;
      for (int64_t l = lane; l < N; l += kLanes) {
        state[l] = decayed(a.decays[token * N + l], state[l]) + a.weights[token * N + l] * x;
      }
    }
    float total = 0;
    if (is_set(a.reader_mask, row * ranges.T + t)) {
      for (int64_t l = lane; l < N; l += kLanes) total += passed[token * N + l] * state[l];
    }
    total = warp_sum(total);
    if (lane == 0) store(out + token * a.width + c, total);
  }
  for (int64_t l = lane; l < N && a.after != nullptr; l += kLanes) {
    a.after[first + l * a.width] = state[l];
  }
}

template <typename T>
__global__ void reverse_memory_channels(SlotScan a, const float* passed, T* dx) {
  SharedArena arena;
  const WarpFloats shared(arena, a.sequences.N);
  const SlotSequences& ranges = a.sequences;
  const int64_t item = global_warp();
  if (item >= ranges.count * ranges.H * a.width) return;
  const int64_t c = item % a.width, h = item / a.width % ranges.H;
  const int64_t n = item / a.width / ranges.H, row = ranges.row(n), N = ranges.N;
  const int64_t first = (n * ranges.H + h) * N * a.width + c;
  const int lane = warp_lane();
  float* gradient = shared.mine();  // of this lane's slots
  for (int64_t l = lane; l < N; l += kLanes) {
    gradient[l] = a.before != nullptr ? a.before[first + l * a.width] : 0.0f;
  }
  for (int64_t t = ranges.end(n) - 1; t >= ranges.begin(n); --t) {
    const int64_t token = ranges.token(row, t, h);
    if (passed != nullptr && is_set(a.reader_mask, row * ranges.T + t)) {
      const float reader = element<T>(a.reader, token * a.width + c);
      for (int64_t l = lane; l < N; l += kLanes) gradient[l] += passed[token * N + l] * reader;
    }
    if (a.weights == nullptr) continue;
    float total = 0;
    for (int64_t l = lane; l < N; l += kLanes) {
      total += a.weights[token * N + l] * gradient[l];
      gradient[l] = decayed(a.decays[token * N + l], gradient[l]);
    }
    total = warp_sum(total);
    const bool written = is_set(a.x_mask, row * ranges.T + t);
    if (lane == 0) store(dx + token * a.width + c, written ? total : 0.0f);
  }
  for (int64_t l = lane; l < N && a.after != nullptr; l += kLanes) {
    a.after[first + l * a.width] = gradient[l];
  }
}

template <typename T>
__global__ void reverse_memory_slots(SlotScan a, const float* passed, float* dweights,
                                     bool accumulate) {
  SharedArena arena;
  const WarpFloats shared(arena, a.width);
  const SlotSequences& ranges = a.sequences;
  const int64_t item = global_warp();
  if (item >= ranges.slots()) return;
  const SlotSequences::Slot slot = ranges.slot(item);
  const int lane = warp_lane();
  float* gradient = shared.mine();  // of this lane's channels
  for (int64_t c = lane; c < a.width; c += kLanes) {
    gradient[c] = a.before != nullptr ? a.before[item * a.width + c] : 0.0f;
  }
  for (int64_t t = ranges.end(slot.n) - 1; t >= ranges.begin(slot.n); --t) {
    const int64_t token = ranges.token(slot.row, t, slot.h), i = token * ranges.N + slot.l;
    const bool written = is_set(a.x_mask, slot.row * ranges.T + t);
    const bool read = passed != nullptr && is_set(a.reader_mask, slot.row * ranges.T + t);
    float total = 0;
    for (int64_t c = lane; c < a.width; c += kLanes) {
      float value = gradient[c];
      if (read) value += passed[i] * element<T>(a.reader, token * a.width + c);
      if (written) total += value * element<T>(a.x, token * a.width + c);
      gradient[c] = decayed(a.decays[i], value);
    }
    total = warp_sum(total);
    if (lane == 0) dweights[i] = accumulate ? dweights[i] + total : total;
  }
}

int64_t channels_of(const SlotScan& scan) {
  return scan.sequences.count * scan.sequences.H * scan.width;
}

}  // namespace

void scan_slots(const SlotScan& scan, const Tensor& products) {
  dispatch(scan.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(warps("scan_memory_slots", scan.sequences.slots(), scan.width), scan_memory_slots<T>,
           scan, pointer_or_null<float>(products));
  });
}

void scan_channels(const SlotScan& scan, const Tensor& passed, const Tensor& out) {
  dispatch(scan.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(warps("scan_memory_channels", channels_of(scan), scan.sequences.N),
           scan_memory_channels<T>, scan, pointer<float>(passed), pointer<T>(out));
  });
}

void reverse_scan_channels(const SlotScan& scan, const Tensor& passed, const Tensor& dx) {
  dispatch(scan.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(warps("reverse_memory_channels", channels_of(scan), scan.sequences.N),
           reverse_memory_channels<T>, scan, pointer_or_null<float>(passed),
           pointer_or_null<T>(dx));
  });
}

void reverse_scan_slots(const SlotScan& scan, const Tensor& passed, const Tensor& dweights,
                        bool accumulate) {
  dispatch(scan.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(warps("reverse_memory_slots", scan.sequences.slots(), scan.width),
           reverse_memory_slots<T>, scan, pointer_or_null<float>(passed), pointer<float>(dweights),
           accumulate);
  });
}

}  // namespace linnet::cuda
