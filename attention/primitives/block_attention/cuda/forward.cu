// Block attention, forward.
#include "attention/primitives/block_attention/cuda/problem.h"
#include "attention/primitives/block_attention/cuda/step.h"

namespace linnet::cuda {
namespace {

using namespace block_attention_detail;

__global__ void block_attend(const __grid_constant__ BlockProblem p, StoredResults y,
                             float* log_sum_exp) {
  attend(p, y, log_sum_exp);
}

}  // namespace

void block_attention_detail::forward(const BlockAttentionTensors& in,
                                     const BlockAttentionContext& context, const Tensor& y,
                                     const Tensor& log_sum_exp) {
  if (is_block_attention_step(in, context)) {
    return block_attention_step(in, context, y, log_sum_exp);
  }
  const BlockProblem p = problem_of(in, context);
  launch(launch_attend("block_attend", p), block_attend, p, stored_results(y),
         pointer<float>(log_sum_exp));
}

}  // namespace linnet::cuda
