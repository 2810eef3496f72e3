#include "recipes/engine/bench/cuda/bench_cudnn.h"

#include <array>
#include <cmath>

#include "attention/common/mixer_support.h"
#include "attention/primitives/block_attention/block_attention.h"
#include "attention/primitives/cudnn_softmax/cuda/cudnn_softmax.h"
#include "core/kernel_choice.h"
#include "recipes/engine/bench/timing.h"

namespace linnet::cuda {
namespace {

// A few roundings of bf16, of the largest number of a tensor; that of tools/bench/peers.
constexpr double kTolerance = 2e-2;

// q, k, v and the gradient of y.
using Inputs = std::array<Tensor, 4>;

// y and the gradients of q, k and v.
std::array<Tensor, 4> own_results(const Inputs& inputs, const SoftmaxSizes& sizes) {
  const UseKernels plain(KernelChoice::plain, inputs[0].device());
  const auto leaf = [&](size_t i) { return Variable(inputs[i].to(DType::f32), true); };
  const Variable q = leaf(0), k = leaf(1), v = leaf(2);
  BlockAttentionContext context;
  context.options.causal = sizes.causal;
  context.options.scale = 1 / std::sqrt(static_cast<double>(sizes.K));
  const Variable y = block_attention({q, k, v, {}, {}, {}}, context);
  backward({y}, {inputs[3].to(DType::f32)});
  return {y.value(), q.grad(), k.grad(), v.grad()};
}

CudnnSoftmax::Result forward(const CudnnSoftmax& attention, const Inputs& x,
                             const SoftmaxSizes& sizes) {
  CudnnSoftmax::Result result{
      Tensor::empty(x[0].shape(), DType::bf16, x[0].device()),
      Tensor::empty({sizes.B, sizes.H, sizes.T}, DType::f32, x[0].device())};
  attention.forward(x[0], x[1], x[2], result);
  return result;
}

// The gradients of q, k and v.
std::array<Tensor, 3> backward(const CudnnSoftmax& attention, const Inputs& x,
                               const CudnnSoftmax::Result& result) {
  std::array<Tensor, 3> d;
  for (Tensor& each : d) each = Tensor::empty(x[0].shape(), DType::bf16, x[0].device());
  attention.backward(x[0], x[1], x[2], result, x[3], d);
  return d;
}

void require_agreement(const CudnnSoftmax& attention, const Inputs& inputs,
                       const SoftmaxSizes& sizes) {
  const CudnnSoftmax::Result result = forward(attention, inputs, sizes);
  const std::array<Tensor, 3> d = backward(attention, inputs, result);
  const std::array<Tensor, 4> expected = own_results(inputs, sizes);
  const auto compare = [&](const char* what, const Tensor& got, const Tensor& wanted) {
    const double error = worst_error(got, wanted);
    require(error <= kTolerance, "softmax attention by cuDNN is not timed: its ", what,
            " differs from linnet's by ", error, " of the largest number, more than ", kTolerance);
  };
  compare("result", result.y, expected[0]);
  compare("gradient of the queries", d[0], expected[1]);
  compare("gradient of the keys", d[1], expected[2]);
  compare("gradient of the values", d[2], expected[3]);
}

}  // namespace

OperationBench bench_cudnn_softmax(const OperationOptions& options, Form form, int64_t length) {
  const Device device = options.device;
  const SoftmaxSizes sizes{options.batch, length, options.heads, options.head_width,
                           form == Form::causal};
  std::vector<Inputs> inputs;
  const Shape shape{sizes.B, sizes.T, sizes.H, sizes.K};
  for (uint64_t i = 0; i < 4; ++i) {
    const Tensor x = bench_values(shape, i + 1, DType::bf16, device);
    if (i == 0) inputs.resize(static_cast<size_t>(alternating_inputs(4 * x.bytes(), device)));
    for (Inputs& each : inputs) each[i] = &each == &inputs.front() ? x : x.clone();
  }
  const CudnnSoftmax attention(sizes);
  require_agreement(attention, inputs.front(), sizes);
  OperationBench result{kCudnnSoftmax, form,          options.batch,
                        length,        options.heads, options.head_width};
  result.growth.power = 2;
  MixerOptions mixer;
  mixer.width = options.heads * options.head_width;
  mixer.heads = options.heads;
  mixer.form = form;
  result.multiply_adds = full_attention_cost(mixer, {options.batch, length, 0, DType::bf16}).mixing;
  size_t turn = 0;
  const auto following = [&]() -> const Inputs& { return inputs[turn++ % inputs.size()]; };
  result.forward = time_runs(device, options.runs, [&] { forward(attention, following(), sizes); });
  reset_peak_memory(device);
  const size_t held = allocated_bytes(device);
  result.forward_backward = time_runs(device, options.runs, [&] {
    const Inputs& x = following();
    backward(attention, x, forward(attention, x, sizes));
  });
  result.peak_bytes = peak_allocated_bytes(device) - held;
  return result;
}

}  // namespace linnet::cuda
