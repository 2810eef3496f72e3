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

void visit_queries(const Backward& call, const Splits& splits, BackwardArguments a) {
  const LinearAttentionState<const float> starts = splits.states(call.state_in);
  a.in = {starts.memory, starts.mass};
  a.split_tokens = splits.sizes.tokens;
  run_queries(a, splits.sizes.count, call.device);
}

void visit_keys(const Backward& call, BackwardArguments a) {
  const Splits splits = gradient_splits_of(call, call.q.B * call.k.H);
  const LinearAttentionState<const float> ends = splits.states(call.dstate_out);
  a.in = {ends.memory, ends.mass};
  a.out = {call.dstate_in.memory, call.dstate_in.mass};
  a.split_tokens = splits.sizes.tokens;
  run_keys(a, splits.sizes.count, call.device);
}

Splits query_splits(const Backward& call) {
  return splits_of(call, call.q.B * call.q.H);
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
  {  // the states of one scan are freed before those of the other are computed
    const std::array<Splits, 2> splits{query_splits(parts[0].call), query_splits(parts[1].call)};
    backward_detail::visit_queries(arguments, [&](size_t i, const BackwardArguments& a) {
      visit_queries(parts[i].call, splits[i], a);
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
  visit_queries(call, query_splits(call), a);  // whose states are gone after it
  visit_keys(call, a);
}

}  // namespace linnet::cuda::linear_attention_fast
