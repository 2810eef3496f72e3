// The two steps of the causal backward pass.
#include <algorithm>

#include "attention/primitives/cuda/linear_attention_fast_backward.h"

namespace linnet::cuda::linear_attention_fast {

size_t causal_backward_shared_memory(int64_t features, int64_t values) {
  size_t result = 0;
  linear_attention_detail::for_width(std::max(features, values), [&](auto width) {
    result = shared_bytes<backward_detail::QueriesLayout<width>>();
  });
  return result;
}

void causal_backward(const Backward& call) {
  backward_detail::BackwardArguments a = backward_detail::arguments_of(call);
  a.in = {call.state_in.memory, call.state_in.mass};
  backward_detail::run_queries(a);
  a.in = {call.dstate_out.memory, call.dstate_out.mass};
  a.out = {call.dstate_in.memory, call.dstate_in.mass};
  backward_detail::run_keys(a);
}

}  // namespace linnet::cuda::linear_attention_fast
