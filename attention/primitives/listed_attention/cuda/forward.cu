// Listed attention, forward.
#include "attention/primitives/listed_attention/cuda/problem.h"

namespace linnet::cuda {
namespace {

using namespace listed_attention_detail;

template <typename T>
__global__ void listed_attend(const __grid_constant__ ListedProblem<T> p, TypedResults<T> y,
                              float* log_sum_exp) {
  attend(p, y, log_sum_exp);
}

}  // namespace

void listed_attention_detail::forward(const ListedAttentionTensors& in,
                                      const ListedAttentionContext& context, const Tensor& y,
                                      const Tensor& log_sum_exp) {
  dispatch(y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const ListedProblem<T> p = problem_of<T>(in, context);
    launch(launch_attend("listed_attend", p), listed_attend<T>, p, TypedResults<T>{pointer<T>(y)},
           pointer<float>(log_sum_exp));
  });
}

}  // namespace linnet::cuda
