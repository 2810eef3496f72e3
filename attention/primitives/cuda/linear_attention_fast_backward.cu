// The two steps of the causal backward pass.
#include "attention/primitives/cuda/linear_attention_fast_backward.h"

namespace linnet::cuda::linear_attention_fast {

bool has_backward(int64_t features, int64_t values) {
  return features < 128 && has_forward(features, values) && values <= features;
}

void causal_backward(const Backward& call) {
  backward_detail::BackwardArguments a{};
  a.q = call.q;
  a.k = call.k;
  a.v = call.v;
  a.dy = call.dy;
  a.dq = call.dq;
  a.dk = call.dk;
  a.dv = call.dv;
  a.query_mask = call.query_mask;
  a.key_mask = call.key_mask;
  a.in = {call.state_in.memory, call.state_in.mass};
  a.denominators = call.options.normalizer == Normalizer::none ? nullptr : call.denominators;
  a.corrections = call.corrections;
  a.map = call.options.feature_map;
  a.scale = static_cast<float>(call.options.query_scale);
  a.division = linear_attention_detail::division_of(call.options);
  backward_detail::run_queries(a);
  a.in = {call.dstate_out.memory, call.dstate_out.mass};
  a.out = {call.dstate_in.memory, call.dstate_in.mass};
  backward_detail::run_keys(a);
}

}  // namespace linnet::cuda::linear_attention_fast
