// Convolutions with filters of up to 8 taps: a thread scans over time with its 4 channels of one
// head and keeps the tokens that the filter reaches in registers, so that every element is read and
// written once. 8 tokens are loaded together, which keeps 64 bytes of each thread in flight.
//
// Bytes per token and channel: 4 forward (2 of x, 2 of y), 6 backward (dy, x, dx); besides, of
// every run (32 to 256 tokens), 7 tokens of the source more and, backward, 8 for every tap (a sum,
// written and read). Operations: 2 `count` forward, 4 `count` backward, on ordinary cores.
#include "attention/primitives/depthwise_conv/cuda/fast.h"
#include "core/cuda/mma.h"

namespace linnet::cuda::depthwise_conv_fast {
namespace {

constexpr int kThreads = 128;
constexpr int kTaps = kShortTaps;
constexpr int kBatch = 8;     // tokens that are loaded together
constexpr int kChannels = 4;  // of a thread

struct alignas(8) Four {
  uint32_t words[2];
};
struct Values {
  float values[kChannels];
};

// A thread's channels of a token; zeros where it does not count.
__device__ __forceinline__ Four read(const Line<const kernel_bf16>& line, int64_t row,
                                     int64_t token, int64_t head, int64_t channel, int64_t first) {
  if (!line.counts(row, token, first)) return {};
  return *reinterpret_cast<const Four*>(line.at(row, token, head) + channel);
}
// The same channels of tokens from `begin` on that are all there and count: pointers go on by
// steps.
template <typename E>
__device__ __forceinline__ E* first_of(const Line<E>& line, int64_t row, int64_t begin,
                                       int64_t head, int64_t channel) {
  return line.now.data + row * line.now.batch_stride + begin * line.now.time_stride +
         head * line.now.head_stride + channel;
}
__device__ __forceinline__ Values values_of(const Four& packed) {
  return {{low_of(packed.words[0]), high_of(packed.words[0]), low_of(packed.words[1]),
           high_of(packed.words[1])}};
}

template <bool backward>
__global__ __launch_bounds__(kThreads, backward ? 2 : 3) void depthwise_conv_window(
    const __grid_constant__ Pass a, int64_t blocks) {
  const int64_t heads = a.source.now.H, width = a.source.now.K;
  const int64_t number = blockIdx.x % blocks * kThreads + threadIdx.x, row = blockIdx.x / blocks;
  if (number >= heads * width / kChannels) return;
  const int64_t head = number / (width / kChannels);
  const int64_t channel = number % (width / kChannels) * kChannels;
  const int64_t first = a.first(row), before = a.before<backward>();
  const int64_t begin = a.first_out + blockIdx.y * a.run;
  const int64_t end = begin + a.run < a.time ? begin + a.run : a.time;
  const int count = static_cast<int>(a.taps.count);

  Values taps[kTaps], sums[kTaps] = {}, window[kTaps - 1 + kBatch];
#pragma unroll
  for (int n = 0; n < kTaps; ++n) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      taps[n].values[c] = n < count ? a.tap<backward>(head, channel + c, n) : 0.0f;
    }
  }
#pragma unroll
  for (int i = 0; i < kTaps - 1; ++i) {
    window[i] = values_of(read(a.source, row, begin - before + i, head, channel, first));
  }
  // One batch of tokens; `inside`: nothing is masked, and no filter reaches beyond the row.
  const auto convolve = [&](int64_t token, auto inside) {
    constexpr bool kInside = decltype(inside)::value;
    [[maybe_unused]] Four others[kBatch];
    // Not to be multiplied out for every token.
    [[maybe_unused]] const kernel_bf16 *sources = nullptr, *multiplied = nullptr;
    [[maybe_unused]] kernel_bf16* results = nullptr;
    if constexpr (kInside) {
      sources = first_of(a.source, row, token - before + kTaps - 1, head, channel);
      if constexpr (backward) multiplied = first_of(a.other, row, token, head, channel);
      results = first_of(a.out, row, token, head, channel);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if constexpr (kInside) {
        window[kTaps - 1 + i] = values_of(*reinterpret_cast<const Four*>(sources));
        sources += a.source.now.time_stride;
        if constexpr (backward) {
          others[i] = *reinterpret_cast<const Four*>(multiplied);
          multiplied += a.other.now.time_stride;
        }
      } else {
        window[kTaps - 1 + i] =
            values_of(read(a.source, row, token - before + kTaps - 1 + i, head, channel, first));
        if constexpr (backward) others[i] = read(a.other, row, token + i, head, channel, first);
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t own = token + i;
      int from = 0, to = kTaps;  // beyond the filter its taps are 0
      if constexpr (!kInside) {
        if (own >= end) break;
        const Reach reach = a.reach(row, own, first);
        const int64_t source = own - before;  // of tap 0
        from = reach.begin > source ? static_cast<int>(reach.begin - source) : 0;
        to = static_cast<int>(reach.end - source < count ? reach.end - source : count);
      }
      Values result = {};
      [[maybe_unused]] Values other = {};
      if constexpr (backward) other = values_of(others[i]);
#pragma unroll
      for (int n = 0; n < kTaps; ++n) {
        if (n < from || n >= to) continue;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          result.values[c] += taps[n].values[c] * window[i + n].values[c];
          if constexpr (backward) {
            sums[n].values[c] += other.values[c] * window[i + n].values[c];
          }
        }
      }
      const Four packed = {
          {pack(result.values[0], result.values[1]), pack(result.values[2], result.values[3])}};
      if constexpr (kInside) {
        *reinterpret_cast<Four*>(results) = packed;
        results += a.out.now.time_stride;
      } else {
        const bool counts = a.out.counts(row, own, first);
        *reinterpret_cast<Four*>(a.out.at(row, own, head) + channel) = counts ? packed : Four{};
      }
    }
#pragma unroll
    for (int i = 0; i < kTaps - 1; ++i) window[i] = window[kBatch + i];
  };
  const bool all_count = a.span_begins == nullptr && a.source.mask == nullptr &&
                         a.out.mask == nullptr && (!backward || a.other.mask == nullptr);
  const int64_t inner_begin = before + (first > 0 ? first : 0);
  const int64_t inner_end = a.time + before - kTaps - kBatch + 1;  // last begin of an inner batch
  for (int64_t token = begin; token < end; token += kBatch) {
    if (all_count && token >= inner_begin && token <= inner_end && token + kBatch <= end) {
      convolve(token, std::true_type{});
    } else {
      convolve(token, std::false_type{});
    }
  }
  if constexpr (backward) {
    const int64_t part = blockIdx.y * a.source.now.B + row;
#pragma unroll
    for (int n = 0; n < kTaps; ++n) {
      if (n >= count) continue;
      // Tap n of the window is the filter's from the other end.
      float* to = a.partial + ((part * count + count - 1 - n) * heads + head) * width + channel;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) to[c] = sums[n].values[c];
    }
  }
}

// Blocks of one row.
int64_t blocks_of(const Pass& pass) {
  return (pass.source.now.H * pass.source.now.K / kChannels + kThreads - 1) / kThreads;
}

}  // namespace

int64_t window_run(const Pass& pass) {
  // 2048 blocks fill the largest GPUs; a run that is not much longer than a filter reads the tokens
  // between runs too often, and a grid has at most 65,535 of them.
  constexpr int64_t kBlocks = 2048, kShortest = 32, kLongest = 256, kMaxRuns = 65535;
  const int64_t wanted = pass.tokens() * pass.source.now.B * blocks_of(pass) / kBlocks;
  const int64_t run = std::min(std::max(wanted, kShortest), kLongest) / kBatch * kBatch;
  return std::max(run, (pass.tokens() + kMaxRuns - 1) / kMaxRuns);
}

void run_window(const Pass& pass, bool backward) {
  const int64_t blocks = blocks_of(pass);
  launch({"depthwise_conv_window",
          dim3(blocks_for(blocks * pass.source.now.B, 1), static_cast<unsigned>(pass.runs())),
          kThreads},
         backward ? depthwise_conv_window<true> : depthwise_conv_window<false>, pass, blocks);
}

}  // namespace linnet::cuda::depthwise_conv_fast
