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

void visit_queries(Backward call, const Splits& splits, BackwardLaunch launch) {
  call.state_in = splits.states(call.state_in);
  launch.split_tokens = splits.sizes.tokens;
  run_queries(call, launch, splits.sizes.count);
}

void visit_keys(Backward call, BackwardLaunch launch) {
  const Splits splits = gradient_splits_of(call, call.q.B * call.k.H);
  call.dstate_out = splits.states(call.dstate_out);
  launch.split_tokens = splits.sizes.tokens;
  run_keys(call, launch, splits.sizes.count);
}

Splits query_splits(const Backward& call) {
  return splits_of(call, call.q.B * call.q.H);
}

void backward_in_parts(const Backward& call) {
  const auto part = [&](const Columns& columns) {
    return BackwardPart(call, {call.q.B * call.k.H, call.keys, columns, call.v.K, call.device});
  };
  const std::array<Columns, 2> columns = parts_of(call.k.K);
  const std::array<BackwardPart, 2> parts{part(columns[0]), part(columns[1])};
  const Tensor along = Tensor::empty({call.q.B, call.q.T, call.q.H}, DType::f32, call.device);
  const Tensor sums = value_sums_for(call.v.K, call.q.B * call.k.H, call.q.T, call.device);
  const std::array<BackwardLaunch, 2> launches = launches_of_parts(along, sums);
  {  // the states of one scan are freed before those of the other are computed
    const std::array<Splits, 2> splits{query_splits(parts[0].call), query_splits(parts[1].call)};
    backward_detail::visit_queries(launches, call.denominators != nullptr,
                                   [&](size_t i, const BackwardLaunch& launch) {
                                     visit_queries(parts[i].call, splits[i], launch);
                                   });
  }
  for (size_t i = 0; i < 2; ++i) {
    visit_keys(parts[i].call, launches[i]);
    parts[i].rows.put(parts[i].dstate_in, call.dstate_in);
  }
}

}  // namespace

void causal_backward(const Backward& call) {
  call.check_queries("causal_backward");
  call.check_keys("causal_backward");
  if (needs_parts(call.keys)) return backward_in_parts(call);
  visit_queries(call, query_splits(call), {});  // whose states are gone after it
  visit_keys(call, {});
}

}  // namespace linnet::cuda::linear_attention_fast
