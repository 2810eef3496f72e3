#include "attention/primitives/block_attention/binding.h"

namespace linnet::binding {
namespace {

constexpr const char* kName = "block attention";

}  // namespace

BlockAttentionArrays block_attention_arrays(const BlockAttentionVariables& inputs, DType dtype,
                                            const char* primitive) {
  const auto array = [&](const Variable& x) { return converted(x, dtype, primitive); };
  BlockAttentionArrays arrays{array(inputs.q),      array(inputs.k),      array(inputs.v),
                              array(inputs.past_k), array(inputs.past_v), array(inputs.bias)};
  for (const Tensor* x : {&arrays.q, &arrays.k, &arrays.v, &arrays.past_k, &arrays.past_v}) {
    check_sequence(*x, primitive);
  }
  return arrays;
}

BlockAttentionArrays empty_like(const BlockAttentionArrays& arrays) {
  return {empty_like(arrays.q),      empty_like(arrays.k),      empty_like(arrays.v),
          empty_like(arrays.past_k), empty_like(arrays.past_v), empty_like(arrays.bias)};
}

template <typename T>
BlockAttentionInputs<T> bind_block_attention(const BlockAttentionArrays& arrays,
                                             const BlockAttentionContext& context) {
  BlockAttentionInputs<T> in;
  in.q = view_of<T>(arrays.q);
  in.k = view_of<T>(arrays.k);
  in.v = view_of<T>(arrays.v);
  in.past_k = view_of<T>(arrays.past_k);
  in.past_v = view_of<T>(arrays.past_v);
  const int64_t B = in.q.B, length = in.q.T;
  check_shape(context.query_mask, {B, length}, kName, "query_mask");
  in.query_mask = pointer<uint8_t>(context.query_mask);
  check_shape(context.key_mask, {B, in.k.T}, kName, "key_mask");
  in.key_mask = pointer<uint8_t>(context.key_mask);
  check_shape(context.past_mask, {B, in.past_k.T}, kName, "past_mask");
  in.past_mask = pointer<uint8_t>(context.past_mask);
  if (arrays.bias.defined()) {
    require(arrays.bias.shape().rank() == 2, "block attention: expected bias [heads, distances]",
            ", got ", arrays.bias.shape());
    in.bias = arrays.bias.data<T>();
    in.bias_heads = arrays.bias.size(0);
    in.bias_count = arrays.bias.size(1);
    in.bias_origin = context.bias_origin;
  }
  if (const Tensor& examples = context.place.examples; examples.defined()) {
    require(examples.elements() == B, "block attention: expected an example number for each of ", B,
            " rows, got ", examples.elements());
    in.example_ids = examples.data<int64_t>();
  }
  in.time_offset = context.place.time_offset;
  if (context.times.defined()) {
    require(context.times.shape() == Shape({B}), kName, ": expected times [", B, "], got ",
            context.times.shape());
    in.row_times = context.times.data<int64_t>();
  }
  if (context.cross) return in;
  check_leading(context.segments, arrays.q, 2, kName, "segments");
  check_leading(context.positions, arrays.q, 2, kName, "positions");
  std::vector<int64_t> starts(static_cast<size_t>(B), context.place.time_offset);
  for (int64_t b = 0; context.positions.defined() && length > 0 && b < B; ++b) {
    starts[b] = context.positions.data<int32_t>()[b * length];
  }
  in.spans = make_spans(pointer<int32_t>(context.segments), B, length, arrays.past_k.defined(),
                        starts.data());
  return in;
}

template <typename T>
BlockAttentionGradients<T> block_attention_gradients(const BlockAttentionArrays& d) {
  BlockAttentionGradients<T> out;
  out.dq = view_of<T>(d.q);
  out.dk = view_of<T>(d.k);
  out.dv = view_of<T>(d.v);
  out.dpast_k = view_of<T>(d.past_k);
  out.dpast_v = view_of<T>(d.past_v);
  out.dbias = pointer<T>(d.bias);
  return out;
}

template BlockAttentionInputs<float> bind_block_attention(const BlockAttentionArrays&,
                                                          const BlockAttentionContext&);
template BlockAttentionInputs<double> bind_block_attention(const BlockAttentionArrays&,
                                                           const BlockAttentionContext&);
template BlockAttentionGradients<float> block_attention_gradients(const BlockAttentionArrays&);
template BlockAttentionGradients<double> block_attention_gradients(const BlockAttentionArrays&);

}  // namespace linnet::binding
