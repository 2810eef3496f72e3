// Inputs of the orthogonal memory for tests of its kernels on tensor cores, and the comparison with
// what the CPU computes in double.
#pragma once

#include "attention/primitives/orthogonal_memory/orthogonal_memory.h"
#include "core/kernel_choice.h"
#include "tests/attention/cuda/both_devices.h"

namespace linnet::test::orthogonal_memory_inputs {

struct Setting {
  const char* name;
  MemoryScope scope;
  int64_t window, B, T, H, r, d;
  bool state = false, segments = false, masks = false;
  std::vector<int32_t> starts = {};  // positions of the first tokens
  int64_t source = -1;               // codes of cross-attention
  int32_t segment_tokens = 37;
  double dropout = 0;

  int64_t codes() const { return source >= 0 ? source : T; }
};

// q, f, basis, completed and partial in f64, as the device will hold them; masked tokens hold NaN.
// The basis is that of a model in bf16, its rows of about unit length.
inline std::vector<Tensor> inputs_of(const Setting& s) {
  std::vector<Tensor> in{
      random_tensor({s.B, s.T, s.H, s.d}, "q"), random_tensor({s.B, s.codes(), s.H, s.d}, "f"),
      random_tensor({s.H, s.r, s.d}, "basis"), random_tensor({s.B, s.H, s.r}, "completed"),
      random_tensor({s.B, s.H, s.r}, "partial")};
  if (!s.state) in[3] = in[4] = Tensor();
  const double shrink = 1 / std::sqrt(static_cast<double>(s.d));
  for (int64_t i = 0; i < in[2].elements(); ++i) in[2].data<double>()[i] *= shrink;
  for (size_t i = 0; i < 3; ++i) {
    in[i] = in[i].to(DType::bf16).to(DType::f64);
    if (s.masks && i < 2) put_nan_behind(mask_of(s.B, in[i].size(1)), in[i]);
  }
  return in;
}

inline OrthogonalMemoryContext context_of(const Setting& s, Device device) {
  OrthogonalMemoryContext context;
  context.options = {s.scope, s.window, 0.8, false};
  context.cross = s.source >= 0;
  context.place.time_offset = 3;
  if (s.dropout > 0) {
    context.options.dropout = s.dropout;
    context.options.dropout_key = RandomKey{3, 8, 5};
    std::vector<int64_t> examples;
    for (int64_t b = 0; b < s.B; ++b) examples.push_back(90 - b);
    context.place.examples = Tensor::from(examples, {s.B}, device);
  }
  if (s.masks) {
    context.query_mask = Tensor::from(mask_of(s.B, s.T), {s.B, s.T}, device);
    context.code_mask = Tensor::from(mask_of(s.B, s.codes()), {s.B, s.codes()}, device);
  }
  if (s.segments) {
    std::vector<int32_t> ids;  // one begins with a chunk
    for (int64_t i = 0; i < s.B * s.T; ++i) {
      ids.push_back(static_cast<int32_t>((i + 10) / s.segment_tokens));
    }
    context.segments = Tensor::from(ids, {s.B, s.T}, device);
  }
  if (!s.starts.empty()) {
    std::vector<int32_t> positions;
    for (const int32_t start : s.starts) {
      for (int64_t t = 0; t < s.T; ++t) positions.push_back(start + static_cast<int32_t>(t));
    }
    context.positions = Tensor::from(positions, {s.B, s.T}, device);
  }
  return context;
}

struct Outcome {
  std::vector<Tensor> values;  // y and carried sums, then gradients of every defined input
  std::vector<int64_t> counts, memory_tokens;
};

// `computed` is f64 or bf16.
inline Outcome run(const Setting& s, const std::vector<Tensor>& tensors, Device device,
                   const OrthogonalMemoryContext& context, DType computed) {
  std::vector<Variable> in;
  for (size_t i = 0; i < tensors.size(); ++i) {
    in.push_back(input_on(device, tensors[i], i < 2 ? DType::bf16 : DType::f32, computed));
  }
  OrthogonalMemoryCarry carry{in[3], in[4], {}};
  if (s.state) {
    std::vector<int64_t> counts;
    for (int64_t b = 0; b < s.B; ++b)
      counts.insert(counts.end(), {b == 1 ? 0 : 40, b == 0 ? 2 : 0});
    carry.counts = Tensor::from(counts, {s.B, 2}, device);
  }
  const OrthogonalMemoryResult result = orthogonal_memory(in[0], in[1], in[2], carry, context);
  return {with_gradients({result.y, result.carry.completed, result.carry.partial}, in),
          result.carry.counts.to_vector<int64_t>(), result.memory_tokens.to_vector<int64_t>()};
}

inline Outcome run(const Setting& s, const std::vector<Tensor>& tensors, Device device,
                   const OrthogonalMemoryContext& context) {
  return run(s, tensors, device, context, usual_dtype(device));
}

inline Outcome run(const Setting& s, const std::vector<Tensor>& tensors, Device device) {
  return run(s, tensors, device, context_of(s, device));
}

// By plain arithmetic, on the CPU.
inline std::vector<Tensor> run_plainly(const Setting& s, const std::vector<Tensor>& tensors) {
  return run(s, tensors, Device{}, context_of(s, Device{}), DType::bf16).values;
}

inline void expect_what_the_cpu_computes(const Setting& s, const std::vector<Tensor>& in) {
  SCOPED_TRACE(s.name);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const Outcome expected = run(s, in, Device{});
  const Outcome got = run(s, in, kGpu);
  EXPECT_EQ(got.counts, expected.counts);
  EXPECT_EQ(got.memory_tokens, expected.memory_tokens);
  EXPECT_EQ(got.values[0].dtype(), DType::bf16);
  expect_close_in_bf16(got.values, expected.values, run_plainly(s, in));
}

}  // namespace linnet::test::orthogonal_memory_inputs
