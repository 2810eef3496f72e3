// The two steps of the causal backward pass.
#include "attention/primitives/cuda/linear_attention_fast_backward.h"

namespace linnet::cuda::linear_attention_fast {

size_t causal_backward_shared_memory(int64_t features, int64_t values) {
  size_t result = 0;
  linear_attention_detail::for_width(
      backward_detail::tile_width(features, values),
      [&](auto width) { result = shared_bytes<backward_detail::QueriesLayout<width>>(); });
  return result;
}

void causal_backward(const Backward& call) {
  backward_detail::BackwardArguments a = backward_detail::arguments_of(call);
  {  // the states of one walk are gone before those of the other are made
    const Pieces before = pieces_of(call, call.q.B * call.q.H);
    const LinearAttentionState<const float> starts = before.states(call.state_in);
    a.in = {starts.memory, starts.mass};
    a.piece_tokens = before.cut.tokens;
    backward_detail::run_queries(a, before.cut.count, call.device);
  }
  const Pieces after = gradient_pieces_of(call, call.q.B * call.k.H);
  const LinearAttentionState<const float> ends = after.states(call.dstate_out);
  a.in = {ends.memory, ends.mass};
  a.out = {call.dstate_in.memory, call.dstate_in.mass};
  a.piece_tokens = after.cut.tokens;
  backward_detail::run_keys(a, after.cut.count, call.device);
}

}  // namespace linnet::cuda::linear_attention_fast
