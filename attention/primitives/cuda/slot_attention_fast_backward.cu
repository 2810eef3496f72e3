// The two walks of the causal backward pass, and what lies between them.
#include <algorithm>

#include "attention/primitives/cuda/slot_attention_fast_backward.h"

namespace linnet::cuda::slot_attention_fast {

bool has_backward(int64_t slots, int64_t keys, int64_t values) {
  return has_forward(slots, keys, values) && keys <= 64 && values <= 64;
}

void backward(const Backward& call) {
  const int64_t B = call.q.B, T = std::max(call.q.T, call.k.T), H = call.q.H, N = call.logits.K;
  const auto scratch = [&](const Shape& shape, DType dtype) {
    return Tensor::empty(shape, dtype, call.device);
  };
  const Tensor probabilities = scratch({B, T, H, N}, DType::bf16);
  const Tensor dreads = scratch({B, T, H, N}, DType::bf16);
  const Tensor shifts = scratch({B, T, H}, DType::f32), means = scratch({B, T, H}, DType::f32);
  const Tensor entropies = scratch({B, T, H}, DType::f32);
  backward_detail::BackwardArguments a{};
  a.q = call.q;
  a.k = call.k;
  a.v = call.v;
  a.logits = call.logits;
  a.d_o = call.d_o;
  a.dq = call.dq;
  a.dk = call.dk;
  a.dv = call.dv;
  a.dlogits = call.dlogits;
  a.query_mask = call.query_mask;
  a.key_mask = call.key_mask;
  a.segments = call.segments;
  a.spans = call.spans.table;
  a.walks = call.spans.memories(B);
  a.in = call.state_in;
  a.dkeys_out = call.dkeys_out;
  a.dvalues_out = call.dvalues_out;
  a.dkeys_in = call.dkeys_in;
  a.dvalues_in = call.dvalues_in;
  a.dsums = call.dsums;
  a.reading = {static_cast<float>(call.options.scale), static_cast<int>(N),
               call.options.mask_empty};
  a.probabilities = {pointer<kernel_bf16>(probabilities), B, T, H, N};
  a.dreads = {pointer<kernel_bf16>(dreads), B, T, H, N};
  a.kept_probabilities = a.probabilities;
  a.kept_dreads = a.dreads;
  a.shifts = pointer<float>(shifts);
  a.means = pointer<float>(means);
  a.entropies = pointer<float>(entropies);
  const int64_t chunks = a.chunks(T);
  const Tensor masses = scratch({H, chunks, N}, DType::f64);
  const Tensor tiles = scratch({H, chunks}, DType::i64);
  a.chunk_masses = pointer<double>(masses);
  a.chunk_tiles = pointer<int64_t>(tiles);
  backward_detail::run_queries(a);
  backward_detail::run_keys(a);
}

}  // namespace linnet::cuda::slot_attention_fast
