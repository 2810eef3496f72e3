// LAVO's one pass on Variables of a CUDA device: checks, tensors saved for backward.
#include "attention/lavo/cuda/lavo_pass.h"

#include <algorithm>

#include "attention/lavo/cuda/lavo_pass_fast.h"
#include "attention/primitives/orthogonal_memory/cuda/fast.h"
#include "attention/tensor_core/aligned_views.h"
#include "core/cuda/elementwise.h"
#include "core/cuda/runtime.h"
#include "core/error.h"
#include "core/kernel_choice.h"

namespace linnet::cuda {
namespace {

// Inputs as the kernels read them, and results of forward for backward.
struct Arrays {
  Tensor q, k, v, basis, bias;
  Tensor tokens, sums, phases;  // of the memory
  Tensor local, log_sum_exp;    // of the window; undefined where gradients are not wanted
};

Tensor like(const Tensor& x) {
  return x.defined() ? Tensor::empty(x.shape(), x.dtype(), x.device()) : Tensor();
}

std::vector<Variable> variables(const LavoPassVariables& inputs) {
  return {inputs.q, inputs.k, inputs.v, inputs.basis, inputs.bias};
}

// Inputs of both passes of the memory.
template <typename Call>
Call memory_call(const Arrays& arrays, const LavoPassContext& context) {
  Call call;
  call.q = view_of<const kernel_bf16>(arrays.q);
  call.f = arrays.local.defined() ? view_of<const kernel_bf16>(arrays.local) : call.q;
  call.query_mask = call.code_mask = pointer_or_null<const uint8_t>(context.mask);
  call.segments = pointer_or_null<const int32_t>(context.segments);
  call.basis = pointer<const float>(arrays.basis);
  call.rank = static_cast<int>(arrays.basis.size(1));
  call.window = static_cast<int>(context.options.window);
  call.scale = static_cast<float>(context.options.scale);
  call.drops = context.options.dropout > 0;
  call.dropout =
      RowDropout(context.options.dropout, context.options.memory_key, call.q.H * call.rank);
  call.examples = pointer_or_null<const int64_t>(context.place.examples);
  call.time_offset = context.place.time_offset;
  call.tokens = pointer<int64_t>(arrays.tokens);
  call.saved.sums = pointer<float>(arrays.sums);
  call.saved.phases = pointer<int32_t>(arrays.phases);
  return call;
}

lavo_pass_fast::WindowDropout window_dropout(const LavoPassOptions& options) {
  BlockAttentionOptions block;
  block.dropout = options.dropout;
  return {options.window_key, block_attention_detail::DropoutDraws(block, 0, 0),
          dropout_scale(options.dropout)};
}

void run_backward(const Arrays& arrays, const LavoPassContext& context, Gradients& gradients) {
  const auto output = [&](size_t i) {
    return gradients.has_output(i) ? gradients.output(i) : Tensor();
  };
  const Tensor dy = aligned(gradients.output(0));
  const Device device = arrays.q.device();
  const int64_t B = arrays.q.size(0), H = arrays.q.size(2);
  const Tensor dq = like(arrays.q), df = like(arrays.q);
  const Tensor dots = Tensor::empty({B, arrays.q.size(1), H}, DType::f32, device);
  const Tensor dcompleted = output(1), dpartial = output(2);
  auto call = memory_call<orthogonal_memory_fast::Backward>(arrays, context);
  call.dy = view_of<const kernel_bf16>(dy);
  call.share = call.code_share = 0.5f;
  call.empty_code_share = context.options.local_only ? 1.0f : 0.5f;
  call.dcompleted_out = pointer_or_null<const float>(dcompleted);
  call.dpartial_out = pointer_or_null<const float>(dpartial);
  call.dq = view_of<kernel_bf16>(dq);
  call.df = view_of<kernel_bf16>(df);
  call.df_dot_f = pointer<float>(dots);
  const lavo_pass_fast::RunStarts after_runs = lavo_pass_fast::start_runs(call, device);
  const Tensor dbases =
      Tensor::empty({call.split.runs * B, arrays.basis.elements()}, DType::f32, device);
  call.dbasis = pointer<float>(dbases);
  orthogonal_memory_fast::backward(call);
  if (gradients.wanted(3)) {
    const Tensor dbasis = like(arrays.basis);
    sum_rows(dbases, dbasis.reshape({dbasis.elements()}), false);
    gradients.add(3, dbasis);
  }

  const Tensor dk = like(arrays.k), dv = like(arrays.v);
  lavo_pass_fast::WindowBackward window;
  window.memory = call;
  window.k = view_of<const kernel_bf16>(arrays.k);
  window.v = view_of<const kernel_bf16>(arrays.v);
  window.df = view_of<const kernel_bf16>(df);
  window.bias = pointer_or_null<const float>(arrays.bias);
  window.bias_heads = arrays.bias.defined() ? static_cast<int>(arrays.bias.size(0)) : 0;
  window.dropout = window_dropout(context.options);
  window.log_sum_exp = pointer<const float>(arrays.log_sum_exp);
  window.df_dot_f = call.df_dot_f;
  window.memory_dq = view_of<const kernel_bf16>(dq);
  window.dq = call.dq;
  window.dk = view_of<kernel_bf16>(dk);
  window.dv = view_of<kernel_bf16>(dv);
  lavo_pass_fast::plan_runs(window);
  Tensor dtables;
  if (gradients.wanted(4)) {
    dtables = Tensor::empty({window.runs * B, H, arrays.bias.size(1)}, DType::f32, device);
    window.dbias = pointer<float>(dtables);
  }
  lavo_pass_fast::window_backward(window);
  gradients.add(0, dq);
  gradients.add(1, dk);
  gradients.add(2, dv);
  if (!dtables.defined()) return;
  const Tensor dbias = like(arrays.bias);
  sum_rows(dtables.reshape({dtables.elements() / dbias.elements(), dbias.elements()}),
           dbias.reshape({dbias.elements()}), false);
  gradients.add(4, dbias);
}

}  // namespace

bool lavo_pass_fits(const LavoPassVariables& inputs, const LavoPassContext& context) {
  const Shape& shape = inputs.q.shape();
  if (kernel_choice() == KernelChoice::plain || shape.rank() != 4) return false;
  for (const Variable* x : {&inputs.q, &inputs.k, &inputs.v}) {
    if (x->dtype() != DType::bf16 || x->shape() != shape || !is_aligned(x->value())) return false;
  }
  const int64_t width = shape[3], window = context.options.window;
  return inputs.basis.shape().rank() == 3 && window >= 1 &&
         window <= lavo_pass_fast::kWidestWindow && shape[1] >= kMinTensorCoreTokens &&
         orthogonal_memory_fast::has_kernels(width, inputs.basis.size(1)) &&
         std::max({lavo_pass_fast::shared_memory(width),
                   lavo_pass_fast::window_backward_shared_memory(width, window),
                   orthogonal_memory_fast::backward_shared_memory(width)}) <= shared_memory_limit();
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
  call.memory.y = view_of<kernel_bf16>(y);
  call.memory.completed_out = pointer<float>(completed);
  call.memory.partial_out = pointer<float>(partial);
  call.memory.counts_out = pointer<int64_t>(counts);
  call.k = view_of<const kernel_bf16>(arrays.k);
  call.v = view_of<const kernel_bf16>(arrays.v);
  call.bias = pointer_or_null<const float>(arrays.bias);
  call.bias_heads = arrays.bias.defined() ? static_cast<int>(arrays.bias.size(0)) : 0;
  call.dropout = window_dropout(context.options);
  call.local_only = context.options.local_only;
  if (arrays.local.defined()) {
    call.local = view_of<kernel_bf16>(arrays.local);
    call.log_sum_exp = pointer<float>(arrays.log_sum_exp);
  }
  const lavo_pass_fast::RunStarts starts = lavo_pass_fast::start_runs(call, device);
  lavo_pass_fast::forward(call);
  // Fused: each block of the memory is compressed, written and read in one pass over the tokens.
  const std::vector<Variable> outputs = record_many(
      "lavo_pass", {y, completed, partial}, variables(inputs),
      [arrays, context](Gradients& gradients) { run_backward(arrays, context, gradients); });
  return {outputs[0], {outputs[1], outputs[2], counts}};
}

}  // namespace linnet::cuda
