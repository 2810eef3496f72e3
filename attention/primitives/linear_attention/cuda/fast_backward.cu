// The two steps of the causal backward pass.
#include "attention/primitives/linear_attention/cuda/fast_backward.h"

namespace linnet::cuda::linear_attention_fast {

size_t causal_backward_shared_memory(int64_t features, int64_t values) {
  size_t result = 0;
  linear_attention_detail::for_width(
      backward_detail::tile_width(features, values),
      [&](auto width) { result = shared_bytes<backward_detail::QueriesLayout<width>>(); });
  return result;
}

namespace {

using namespace backward_detail;

void visit_queries(const Backward& call, const Pieces& pieces, BackwardArguments a) {
  const LinearAttentionState<const float> starts = pieces.states(call.state_in);
  a.in = {starts.memory, starts.mass};
  a.piece_tokens = pieces.cut.tokens;
  run_queries(a, pieces.cut.count, call.device);
}

void visit_keys(const Backward& call, BackwardArguments a) {
  const Pieces pieces = gradient_pieces_of(call, call.q.B * call.k.H);
  const LinearAttentionState<const float> ends = pieces.states(call.dstate_out);
  a.in = {ends.memory, ends.mass};
  a.out = {call.dstate_in.memory, call.dstate_in.mass};
  a.piece_tokens = pieces.cut.tokens;
  run_keys(a, pieces.cut.count, call.device);
}

Pieces query_pieces(const Backward& call) {
  return pieces_of(call, call.q.B * call.q.H);
}

void backward_in_parts(const Backward& call) {
  const auto part = [&](const Columns& columns) {
    return BackwardPart(call, {call.q.B * call.k.H, call.k.K, call.key_proportions != nullptr,
                               columns, call.v.K, call.device});
  };
  const std::array<Columns, 2> columns = parts_of(call.k.K);
  const std::array<BackwardPart, 2> parts{part(columns[0]), part(columns[1])};
  const Tensor along = Tensor::empty({call.q.B, call.q.T, call.q.H}, DType::f32, call.device);
  const Tensor sums = value_sums_for(call.v.K, call.q.B * call.k.H, call.q.T, call.device);
  const std::array<BackwardArguments, 2> arguments = arguments_of(parts, along, sums);
  {  // the states of one walk are gone before those of the other are made
    const std::array<Pieces, 2> pieces{query_pieces(parts[0].call), query_pieces(parts[1].call)};
    backward_detail::visit_queries(arguments, [&](size_t i, const BackwardArguments& a) {
      visit_queries(parts[i].call, pieces[i], a);
    });
  }
  for (size_t i = 0; i < 2; ++i) {
    visit_keys(parts[i].call, arguments[i]);
    parts[i].rows.put(parts[i].dstate_in, call.dstate_in);
  }
}

}  // namespace

void causal_backward(const Backward& call) {
  if (needs_parts(call.k.K, call.key_proportions != nullptr)) return backward_in_parts(call);
  const BackwardArguments a = arguments_of(call);
  visit_queries(call, query_pieces(call), a);  // whose states are gone after it
  visit_keys(call, a);
}

}  // namespace linnet::cuda::linear_attention_fast
