#include "attention/primitives/block_attention/binding.h"

#include "attention/primitives/block_attention/cuda/block_attention.h"
#include "attention/primitives/common/cuda/token_spans.h"

namespace linnet::binding {

BlockAttentionTensors block_attention_tensors(const BlockAttentionVariables& inputs,
                                              const BlockAttentionContext& context,
                                              const char* primitive) {
  const DType dtype =
      storage_type({&inputs.q, &inputs.k, &inputs.v, &inputs.past_k, &inputs.past_v}, primitive);
  const Device device = inputs.q.value().device();
  const auto kept = [&](const Variable& x) { return converted(x, dtype, primitive, device); };
  BlockAttentionTensors in{
      kept(inputs.q),      kept(inputs.k),
      kept(inputs.v),      kept(inputs.past_k),
      kept(inputs.past_v), converted(inputs.bias, computing_type(inputs.q), primitive, device)};
  for (const Tensor* x : {&in.q, &in.k, &in.v, &in.past_k, &in.past_v}) {
    check_sequence(*x, primitive);
  }
  if constexpr (kCuda) {
    if (on_cuda(in.q)) {
      check_block_attention(bind_block_attention<float>(in, context, primitive), context.options);
      cuda::check_bias_covers(in, context);
      if (!context.cross && context.segments.defined())
        in.spans = cuda::token_spans(context.segments);
    }
  }
  return in;
}

template <typename T>
BlockAttentionInputs<T> bind_block_attention(const BlockAttentionTensors& tensors,
                                             const BlockAttentionContext& context,
                                             const char* primitive) {
  const Tensor& q = tensors.q;
  BlockAttentionInputs<T> in;
  in.q = operand<T>(q);
  in.k = operand<T>(tensors.k);
  in.v = operand<T>(tensors.v);
  in.past_k = operand<T>(tensors.past_k);
  in.past_v = operand<T>(tensors.past_v);
  const int64_t B = in.q.B, length = in.q.T;
  check_shape(context.query_mask, {B, length}, primitive, "query_mask");
  in.query_mask = host_pointer<uint8_t>(context.query_mask, q);
  check_shape(context.key_mask, {B, in.k.T}, primitive, "key_mask");
  in.key_mask = host_pointer<uint8_t>(context.key_mask, q);
  check_shape(context.past_mask, {B, in.past_k.T}, primitive, "past_mask");
  in.past_mask = host_pointer<uint8_t>(context.past_mask, q);
  if (tensors.bias.defined()) {
    require(tensors.bias.shape().rank() == 2, primitive, ": expected bias [heads, distances], got ",
            tensors.bias.shape());
    in.bias = host_pointer<T>(tensors.bias, q);
    in.bias_heads = tensors.bias.size(0);
    in.bias_count = tensors.bias.size(1);
    in.bias_origin = context.bias_origin;
  }
  if (const Tensor& examples = context.place.examples; examples.defined()) {
    require(examples.elements() == B, primitive, ": expected an example number for each of ", B,
            " rows, got ", examples.elements());
    in.example_ids = host_pointer<int64_t>(examples, q);
  }
  in.time_offset = context.place.time_offset;
  if (context.times.defined()) {
    require(context.times.shape() == Shape({B}), primitive, ": expected times [", B, "], got ",
            context.times.shape());
    in.row_times = host_pointer<int64_t>(context.times, q);
  }
  if (context.cross) return in;
  check_leading(context.segments, q, 2, primitive, "segments");
  check_leading(context.positions, q, 2, primitive, "positions");
  std::vector<int64_t> starts(static_cast<size_t>(B), context.place.time_offset);
  const int32_t* positions = host_pointer<int32_t>(context.positions, q);
  for (int64_t b = 0; positions != nullptr && length > 0 && b < B; ++b) {
    starts[b] = positions[b * length];
  }
  in.spans = make_spans(host_pointer<int32_t>(context.segments, q), B, length,
                        tensors.past_k.defined(), starts.data());
  return in;
}

template BlockAttentionInputs<float> bind_block_attention(const BlockAttentionTensors&,
                                                          const BlockAttentionContext&,
                                                          const char*);
template BlockAttentionInputs<double> bind_block_attention(const BlockAttentionTensors&,
                                                           const BlockAttentionContext&,
                                                           const char*);

}  // namespace linnet::binding
