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
__global__ void depthwise_conv_tap_sums(TapSums a) {
  SharedArena arena;
  const Layout shared(arena);
  const int lane = static_cast<int>(threadIdx.x % 32), group = static_cast<int>(threadIdx.x / 32);
  const int64_t n = blockIdx.x % a.count, head = blockIdx.x / a.count % a.heads;
  const int64_t first = blockIdx.x / a.count / a.heads * 32;
  int64_t end = a.width;
  if (a.of_channels && first + 32 < end) end = first + 32;
  float total = 0;
  for (int64_t part = group; part < a.parts; part += kGroups) {
    const float* from = a.partial + ((part * a.count + n) * a.heads + head) * a.width;
    for (int64_t c = first + lane; c < end; c += 32) total += from[c];
  }
  shared.sums[threadIdx.x] = total;
  __syncthreads();
  if (group != 0) return;
  total = 0;
  for (int i = 0; i < kGroups; ++i) total += shared.sums[i * 32 + lane];
  if (!a.of_channels) {
    total = warp_sum(total);
    if (lane == 0) a.dtaps[head * a.count + n] = total;
  } else if (first + lane < end) {
    a.dtaps[(head * a.width + first + lane) * a.count + n] = total;
  }
}

}  // namespace

void sum_taps(const TapSums& sums) {
  const int64_t groups = sums.of_channels ? (sums.width + 31) / 32 : 1;
  launch({"depthwise_conv_tap_sums", blocks_for(sums.count * sums.heads * groups, 1), kGroups * 32,
          shared_bytes<Layout>()},
         depthwise_conv_tap_sums, sums);
}

void run_forward(const Forward& call) {
  Pass pass;
  pass.rows = call.rows;
  pass.filters = call.filters;
  pass.source = call.x;
  pass.out = call.y;
  const bool is_short = call.filters.count <= kShortTaps;
  pass.run = is_short ? window_run(pass) : toeplitz_run(pass);
  is_short ? run_window(pass, false) : run_toeplitz(pass, false);
}

void run_backward(const Backward& call) {
  Pass pass;
  pass.rows = call.rows;
  pass.filters = call.filters;
  pass.source = call.dy;
  pass.out = call.dx;
  pass.other = call.x;
  pass.first_out = -std::min(call.rows.past, call.filters.before);
  const bool is_short = call.filters.count <= kShortTaps;
  pass.run = is_short ? window_run(pass) : toeplitz_run(pass);
  const int64_t heads = call.dy.now.H, parts = pass.runs() * call.dy.now.B;
  const int64_t width = is_short ? call.dy.now.K : toeplitz_width(pass);
  const Tensor partial =
      Tensor::empty({parts, call.filters.count, heads, width}, DType::f32, call.device);
  pass.partial = pointer<float>(partial);
  is_short ? run_window(pass, true) : run_toeplitz(pass, true);
  sum_taps({pass.partial, parts, call.filters.count, heads, width, call.filters.channels != 1,
            call.dtaps});
}

}  // namespace linnet::cuda::depthwise_conv_fast
