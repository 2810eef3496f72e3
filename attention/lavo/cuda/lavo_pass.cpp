// LAVO's one pass on Variables of a CUDA device: checks, what backward saves.
#include "attention/lavo/cuda/lavo_pass.h"

#include <algorithm>

#include "attention/lavo/cuda/lavo_pass_fast.h"
#include "attention/primitives/cuda/block_attention.h"
#include "attention/primitives/cuda/orthogonal_memory_fast.h"
#include "core/cuda/elementwise.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/kernel_choice.h"

namespace linnet::cuda {
namespace {

using orthogonal_memory_fast::is_aligned;
using orthogonal_memory_fast::Reads;
using orthogonal_memory_fast::Writes;

// Inputs as the kernels read them, and what forward leaves for backward.
struct Arrays {
  Tensor q, k, v, basis, bias;
  Tensor tokens, sums, phases;  // of the memory
  Tensor local, log_sum_exp;    // of the window; undefined where gradients are not wanted
};

Reads reads_of(const Tensor& x) {
  return {pointer<const kernel_bf16>(x), x.size(0), x.size(1), x.size(2), x.size(3)};
}
Writes writes_of(const Tensor& x) {
  return {pointer<kernel_bf16>(x), x.size(0), x.size(1), x.size(2), x.size(3)};
}
Tensor like(const Tensor& x) {
  return x.defined() ? Tensor::empty(x.shape(), x.dtype(), x.device()) : Tensor();
}

std::vector<Variable> variables(const LavoPassVariables& inputs) {
  return {inputs.q, inputs.k, inputs.v, inputs.basis, inputs.bias};
}

// What both passes of the memory read.
template <typename Call>
Call memory_call(const Arrays& arrays, const LavoPassContext& context) {
  Call call;
  call.q = reads_of(arrays.q);
  call.f = arrays.local.defined() ? reads_of(arrays.local) : call.q;
  call.query_mask = call.code_mask = pointer_or_null<const uint8_t>(context.mask);
  call.segments = pointer_or_null<const int32_t>(context.segments);
  call.basis = pointer<const float>(arrays.basis);
  call.rank = static_cast<int>(arrays.basis.size(1));
  call.window = static_cast<int>(context.options.window);
  call.scale = static_cast<float>(context.options.scale);
  call.saved = {pointer<float>(arrays.sums), pointer<int32_t>(arrays.phases)};
  return call;
}

// The window as block_attention has it.
BlockAttentionSetting window_setting(const LavoPassContext& context) {
  BlockAttentionContext block;
  block.options.pattern = BlockPattern::band;
  block.options.causal = true;
  block.options.left = context.options.window - 1;
  block.options.scale = context.options.scale;
  block.query_mask = block.key_mask = context.mask;
  block.segments = context.segments;
  block.positions = context.positions;
  block.place.time_offset = context.time_offset;
  block.bias_origin = context.options.window - 1;
  return block_attention_setting(block);
}

void run_backward(const Arrays& arrays, const LavoPassContext& context, Gradients& gradients) {
  const auto output = [&](size_t i) {
    return gradients.has_output(i) ? gradients.output(i) : Tensor();
  };
  const Tensor dy =
      is_aligned(gradients.output(0)) ? gradients.output(0) : gradients.output(0).clone();
  const Tensor dq = like(arrays.q), df = like(arrays.q);
  const Tensor dbases =
      Tensor::empty({arrays.q.size(0), arrays.basis.elements()}, DType::f32, arrays.q.device());
  const Tensor dcompleted = output(1), dpartial = output(2);
  auto call = memory_call<orthogonal_memory_fast::Backward>(arrays, context);
  call.dy = reads_of(dy);
  call.share = call.code_share = 0.5f;
  call.empty_code_share = context.options.local_only ? 1.0f : 0.5f;
  call.tokens = pointer<const int64_t>(arrays.tokens);
  call.dcompleted_out = pointer_or_null<const float>(dcompleted);
  call.dpartial_out = pointer_or_null<const float>(dpartial);
  call.dq = writes_of(dq);
  call.df = writes_of(df);
  call.dbasis = pointer<float>(dbases);
  orthogonal_memory_fast::causal_backward(call);
  gradients.add(0, dq);
  if (gradients.wanted(3)) {
    const Tensor dbasis = like(arrays.basis);
    sum_rows(dbases, dbasis.reshape({dbasis.elements()}), false);
    gradients.add(3, dbasis);
  }
  const BlockAttentionTensors in{arrays.q, arrays.k, arrays.v, {}, {}, arrays.bias};
  const BlockAttentionTensors d{like(arrays.q),
                                like(arrays.k),
                                like(arrays.v),
                                {},
                                {},
                                gradients.wanted(4) ? like(arrays.bias) : Tensor()};
  block_attention_backward(in, window_setting(context), arrays.local, arrays.log_sum_exp, df, d);
  gradients.add(0, d.q);
  gradients.add(1, d.k);
  gradients.add(2, d.v);
  if (d.bias.defined()) gradients.add(4, d.bias);
}

}  // namespace

bool lavo_pass_fits(const LavoPassVariables& inputs, const LavoPassContext& context) {
  const Shape& shape = inputs.q.shape();
  if (kernel_choice() == KernelChoice::plain || shape.rank() != 4) return false;
  // The window's backward pass is plain, which demanded tensor cores refuse.
  if (kernel_choice() == KernelChoice::tensor_cores && needs_grad(variables(inputs))) return false;
  for (const Variable* x : {&inputs.q, &inputs.k, &inputs.v}) {
    if (x->dtype() != DType::bf16 || x->shape() != shape || !is_aligned(x->value())) return false;
  }
  const int64_t width = shape[3];
  return inputs.basis.shape().rank() == 3 &&
         context.options.window <= lavo_pass_fast::kWidestWindow &&
         width <= lavo_pass_fast::kWidestHead && shape[1] >= kFewestTensorCoreTokens &&
         orthogonal_memory_fast::has_backward(width, inputs.basis.size(1)) &&
         std::max(lavo_pass_fast::shared_memory(width),
                  orthogonal_memory_fast::backward_shared_memory(width)) <= shared_memory_limit();
}

LavoPassResult lavo_pass(const LavoPassVariables& inputs, const LavoPassContext& context) {
  require(cuda::lavo_pass_fits(inputs, context),
          "lavo in one pass: the kernels on tensor cores do not ", "cover these inputs of ",
          inputs.q.shape(), "; use the primitives");
  Arrays arrays;
  arrays.q = inputs.q.value();
  arrays.k = inputs.k.value();
  arrays.v = inputs.v.value();
  arrays.basis = inputs.basis.value().to(DType::f32);
  if (inputs.bias.defined()) arrays.bias = inputs.bias.value().to(DType::f32);
  const Device device = arrays.q.device();
  const int64_t B = arrays.q.size(0), length = arrays.q.size(1), H = arrays.q.size(2);
  const int64_t rank = arrays.basis.size(1),
                chunks = (length - 1) / orthogonal_memory_fast::kChunkTokens + 1;
  arrays.tokens = Tensor::empty({B, length}, DType::i64, device);
  arrays.sums = Tensor::empty({B, chunks, H, 2, rank}, DType::f32, device);
  arrays.phases = Tensor::empty({B, chunks}, DType::i32, device);
  if (needs_grad(variables(inputs))) {
    arrays.local = like(arrays.q);
    arrays.log_sum_exp = Tensor::empty({B, length, H}, DType::f32, device);
  }
  const Tensor y = like(arrays.q), counts = Tensor::empty({B, 2}, DType::i64, device);
  const Tensor completed = Tensor::empty({B, H, rank}, DType::f32, device);
  const Tensor partial = like(completed);

  lavo_pass_fast::Forward call;
  call.memory = memory_call<orthogonal_memory_fast::Forward>(arrays, context);
  call.memory.positions = pointer_or_null<const int32_t>(context.positions);
  call.memory.time_offset = context.time_offset;
  call.memory.y = writes_of(y);
  call.memory.completed_out = pointer<float>(completed);
  call.memory.partial_out = pointer<float>(partial);
  call.memory.counts_out = pointer<int64_t>(counts);
  call.memory.tokens = pointer<int64_t>(arrays.tokens);
  call.k = reads_of(arrays.k);
  call.v = reads_of(arrays.v);
  call.bias = pointer_or_null<const float>(arrays.bias);
  call.bias_heads = arrays.bias.defined() ? static_cast<int>(arrays.bias.size(0)) : 0;
  call.local_only = context.options.local_only;
  if (arrays.local.defined()) {
    call.local = writes_of(arrays.local);
    call.log_sum_exp = pointer<float>(arrays.log_sum_exp);
  }
  lavo_pass_fast::forward(call);
  const std::vector<Variable> outputs = record_many(
      "lavo_pass", {y, completed, partial}, variables(inputs),
      [arrays, context](Gradients& gradients) { run_backward(arrays, context, gradients); });
  return {outputs[0], {outputs[1], outputs[2], counts}};
}

}  // namespace linnet::cuda
