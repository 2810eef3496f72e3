// Both passes of the fast convolutions, and the end of their backward pass: the gradients of the
// taps from the sums of runs, in order.
#include "attention/primitives/depthwise_conv/cuda/fast.h"
#include "core/cuda/block_reduce.h"

namespace linnet::cuda::depthwise_conv_fast {
namespace {

constexpr int kGroups = 8;  // of parts, a warp each

struct Layout {
  __host__ __device__ explicit Layout(SharedArena& arena) : sums(arena.take<float>(kGroups * 32)) {}
  float* sums;
};

// A block has one tap of a head's filter, or of 32 channels' filters; lanes are channels.
__global__ void depthwise_conv_tap_sums(const __grid_constant__ Pass a, int64_t parts,
                                        int64_t width, float* dtaps) {
  SharedArena arena;
  const Layout shared(arena);
  const int64_t count = a.taps.count, heads = a.source.now.H;
  const bool of_channels = a.taps.channels != 1;
  const int lane = static_cast<int>(threadIdx.x % 32), group = static_cast<int>(threadIdx.x / 32);
  const int64_t n = blockIdx.x % count, head = blockIdx.x / count % heads;
  const int64_t first = blockIdx.x / count / heads * 32;
  int64_t end = width;
  if (of_channels && first + 32 < end) end = first + 32;
  float total = 0;
  for (int64_t part = group; part < parts; part += kGroups) {
    const float* from = a.partial + ((part * count + n) * heads + head) * width;
    for (int64_t c = first + lane; c < end; c += 32) total += from[c];
  }
  shared.sums[threadIdx.x] = total;
  __syncthreads();
  if (group != 0) return;
  total = 0;
  for (int i = 0; i < kGroups; ++i) total += shared.sums[i * 32 + lane];
  if (!of_channels) {
    total = warp_sum(total);
    if (lane == 0) dtaps[head * count + n] = total;
  } else if (first + lane < end) {
    dtaps[(head * width + first + lane) * count + n] = total;
  }
}

}  // namespace

void run(Pass pass, const Tensor& dtaps) {
  const bool backward = dtaps.defined(), is_short = pass.taps.count <= kShortTaps;
  if (backward) pass.first_out = -std::min(pass.past, pass.taps.before);
  pass.run = is_short ? window_run(pass) : toeplitz_run(pass);
  const auto launch_pass = is_short ? run_window : run_toeplitz;
  if (!backward) return launch_pass(pass, false);
  const int64_t heads = pass.source.now.H, parts = pass.runs() * pass.source.now.B;
  const int64_t width = is_short ? pass.source.now.K : toeplitz_width(pass);
  const Tensor partial =
      Tensor::empty({parts, pass.taps.count, heads, width}, DType::f32, dtaps.device());
  pass.partial = pointer<float>(partial);
  launch_pass(pass, true);
  const int64_t groups = pass.taps.channels != 1 ? (width + 31) / 32 : 1;
  launch({"depthwise_conv_tap_sums", blocks_for(pass.taps.count * heads * groups, 1), kGroups * 32,
          shared_bytes<Layout>()},
         depthwise_conv_tap_sums, pass, parts, width, pointer<float>(dtaps));
}

}  // namespace linnet::cuda::depthwise_conv_fast
