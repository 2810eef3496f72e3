// Listed attention on Variables of a CUDA device: checks, dtypes, tensors saved for backward.
#include "attention/primitives/listed_attention/cuda/listed_attention.h"

#include "attention/primitives/common/binding.h"
#include "attention/primitives/listed_attention/cuda/fast.h"
#include "attention/primitives/listed_attention/cuda/path.h"
#include "core/cuda/backend.h"

namespace linnet::cuda {
namespace {

using namespace binding;

constexpr const char* kName = "listed attention";

void check(const ListedAttentionTensors& in, const ListedAttentionContext& context) {
  const Tensor& index = context.index;
  require(
      index.defined() && index.dtype() == DType::i32 && index.shape().rank() == 4 && on_cuda(index),
      "listed attention: expected an i32 index [rows, heads, lists, length] on the device");
  for (const Tensor* x : {&in.q, &in.k, &in.v}) check_sequence(*x, kName);
  ListedAttentionInputs<float> sizes;
  sizes.q = sizes_of(in.q);
  sizes.k = sizes_of(in.k);
  sizes.v = sizes_of(in.v);
  sizes.index_rows = index.size(0);
  sizes.index_heads = index.size(1);
  sizes.lists = index.size(2);
  sizes.length = index.size(3);
  const int64_t B = sizes.q.B, Tq = sizes.q.T;
  if (in.bias.defined()) {
    const Shape& shape = in.bias.shape();
    require(shape.rank() == 4 && shape[2] == Tq && shape[3] == sizes.length,
            "listed attention: expected bias [rows, heads, ", Tq, ", ", sizes.length, "], got ",
            shape);
    sizes.bias_rows = shape[0];
    sizes.bias_heads = shape[1];
  }
  check_listed_attention(sizes, context.options);
  check_shape(context.query_mask, {B, Tq}, kName, "query_mask");
  check_shape(context.key_mask, {B, sizes.k.T}, kName, "key_mask");
  require(!context.place.examples.defined() || context.place.examples.elements() == B,
          "listed attention: expected an example number for each of ", B, " rows, got ",
          context.place.examples.defined() ? context.place.examples.elements() : 0);
}

// listed_attention_backward on tensor cores.
void fast_backward(const ListedAttentionTensors& in, const ListedAttentionContext& context,
                   const Tensor& y, const Tensor& log_sum_exp, const Tensor& dy, const Tensor& dlse,
                   const ListedAttentionTensors& d) {
  using namespace listed_attention_fast;
  const Tensor readable = aligned(dy);
  listed_attention_fast::backward(call_of(in, context), context,
                                  {reads(y), reads(readable), pointer<const float>(log_sum_exp),
                                   pointer_or_null<const float>(dlse), writes(d.q), writes(d.k),
                                   writes(d.v), d.bias, kShareBytes});
}

}  // namespace

ListedAttentionResult listed_attention(const ListedAttentionVariables& inputs,
                                       const ListedAttentionContext& context) {
  const DType dtype = storage_type({&inputs.q, &inputs.k, &inputs.v}, kName);
  const ListedAttentionTensors in{
      inputs.q.value().to(dtype), inputs.k.value().to(dtype), inputs.v.value().to(dtype),
      inputs.bias.defined() ? inputs.bias.value().to(DType::f32) : Tensor()};
  check(in, context);
  const Device device = in.q.device();
  const int64_t B = in.q.size(0), length = in.q.size(1), H = in.q.size(2);
  const Tensor y = Tensor::empty({B, length, H, in.v.size(3)}, dtype, device);
  const Tensor log_sum_exp = Tensor::empty({B, length, H}, DType::f32, device);
  const bool fast = listed_attention_is_fast(context, in);
  if (fast) {
    using namespace listed_attention_fast;
    listed_attention_fast::forward(call_of(in, context), writes(y), pointer<float>(log_sum_exp));
  } else {
    listed_attention_forward(in, context, y, log_sum_exp);
  }
  const std::vector<Variable> results =
      record_many("listed_attention", {y.to(inputs.q.dtype()), log_sum_exp},
                  {inputs.q, inputs.k, inputs.v, inputs.bias},
                  [in, context, y, log_sum_exp, fast](Gradients& gradients) {
                    const auto like = [](const Tensor& x) {
                      return Tensor::empty(x.shape(), x.dtype(), x.device());
                    };
                    const ListedAttentionTensors d{like(in.q), like(in.k), like(in.v),
                                                   gradients.wanted(3) ? like(in.bias) : Tensor()};
                    const Tensor dlse = gradients.has_output(1) ? gradients.output(1) : Tensor();
                    const Tensor dy = gradients.output(0).to(y.dtype());
                    (fast ? fast_backward : listed_attention_backward)(in, context, y, log_sum_exp,
                                                                       dy, dlse, d);
                    gradients.add(0, d.q);
                    gradients.add(1, d.k);
                    gradients.add(2, d.v);
                    if (d.bias.defined()) gradients.add(3, d.bias);
                  });
  return {results[0], results[1]};
}

}  // namespace linnet::cuda
