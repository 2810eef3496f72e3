// Inputs of LAVO's one pass on a device for its tests, and the comparison with what primitives
// compute on the CPU in double.
#pragma once

#include <limits>

#include "attention/lavo/one_pass.h"
#include "tests/attention/cuda/both_devices.h"
#include "tests/attention/lavo_by_primitives.h"

namespace linnet::test::lavo_pass_inputs {

struct Setting {
  const char* name;
  int64_t window, B, T, H, rank, d;
  int64_t bias_heads = 0;
  bool local_only = false, segments = false, masks = false;
  int64_t time_offset = 0;
  double scale = 0.5;
  double dropout = 0;
};

// Row 0 lacks every fifth token, the last row its end.
inline std::vector<uint8_t> mask_of(const Setting& s) {
  std::vector<uint8_t> mask(static_cast<size_t>(s.B * s.T), 1);
  for (int64_t t = 0; t < s.T; ++t) {
    mask[static_cast<size_t>(t)] = t % 5 == 3 ? 0 : 1;
    mask[static_cast<size_t>((s.B - 1) * s.T + t)] = t < s.T / 2 ? 1 : 0;
  }
  return mask;
}

// q, k, v, basis and bias in f64, as the device will hold them; masked tokens hold NaN.
inline std::vector<Tensor> inputs_of(const Setting& s) {
  const Shape shape{s.B, s.T, s.H, s.d};
  std::vector<Tensor> in{random_tensor(shape, "q"), random_tensor(shape, "k"),
                         random_tensor(shape, "v"), random_tensor({s.H, s.rank, s.d}, "basis")};
  in.push_back(s.bias_heads > 0 ? random_tensor({s.bias_heads, 2 * s.window - 1}, "bias")
                                : Tensor());
  const double shrink = 1 / std::sqrt(static_cast<double>(s.d));
  for (int64_t i = 0; i < in[3].elements(); ++i) in[3].data<double>()[i] *= shrink;
  const std::vector<uint8_t> mask = mask_of(s);
  for (size_t i = 0; i < 4; ++i) {
    in[i] = in[i].to(DType::bf16).to(DType::f64);
    for (int64_t j = 0; s.masks && i < 3 && j < in[i].elements(); ++j) {
      if (mask[static_cast<size_t>(j / (s.H * s.d))] == 0) {
        in[i].data<double>()[j] = std::numeric_limits<double>::quiet_NaN();
      }
    }
  }
  return in;
}

inline LavoPassContext context_of(const Setting& s, Device device) {
  LavoPassContext context;
  context.options = {s.window, s.scale, s.local_only};
  context.place.time_offset = s.time_offset;
  if (s.dropout > 0) {
    context.options.dropout = s.dropout;
    context.options.window_key = RandomKey{3, 8, 5};
    context.options.memory_key = RandomKey{3, 8, 6};
    std::vector<int64_t> examples;
    for (int64_t b = 0; b < s.B; ++b) examples.push_back(90 - b);
    context.place.examples = Tensor::from(examples, {s.B}, device);
  }
  if (s.masks) context.mask = Tensor::from(mask_of(s), {s.B, s.T}, device);
  if (s.segments) {
    std::vector<int32_t> ids;  // one begins with a chunk
    for (int64_t i = 0; i < s.B * s.T; ++i) ids.push_back(static_cast<int32_t>((i + 10) / 37));
    context.segments = Tensor::from(ids, {s.B, s.T}, device);
  }
  return context;
}

// `computed` is f64 or bf16.
inline LavoPassVariables variables_of(const std::vector<Tensor>& in, Device device,
                                      DType computed) {
  std::vector<Variable> x;
  for (size_t i = 0; i < in.size(); ++i) {
    x.push_back(input_on(device, in[i], i < 3 ? DType::bf16 : DType::f32, computed));
  }
  return {x[0], x[1], x[2], x[3], x[4]};
}

inline LavoPassVariables variables_of(const std::vector<Tensor>& in, Device device) {
  return variables_of(in, device, usual_dtype(device));
}

// y and the carried sums, then the gradients of every defined input.
inline std::vector<Tensor> differentiate(const LavoPassVariables& x, const LavoPassResult& result) {
  std::vector<Tensor> found, seeds;
  const std::vector<Variable> outputs{result.y, result.carry.completed, result.carry.partial};
  for (const Variable& output : outputs) {
    found.push_back(output.value());
    seeds.push_back(random_tensor(output.shape(), "seed" + std::to_string(seeds.size()))
                        .to(DType::bf16)
                        .to(output.dtype())
                        .to(output.value().device()));
  }
  backward(outputs, seeds);
  for (const Variable& input : {x.q, x.k, x.v, x.basis, x.bias}) {
    if (input.defined()) found.push_back(input.grad());
  }
  return found;
}

// The results of primitives, from the same inputs by plain arithmetic, on the CPU.
inline std::vector<Tensor> run_plainly(const Setting& s, const std::vector<Tensor>& in) {
  const LavoPassVariables x = variables_of(in, Device{}, DType::bf16);
  return differentiate(x, lavo_by_primitives(x, context_of(s, Device{})));
}

inline void expect_what_primitives_compute(const Setting& s, const std::vector<Tensor>& in) {
  SCOPED_TRACE(s.name);
  const LavoPassVariables exact = variables_of(in, Device{}), x = variables_of(in, kGpu);
  const LavoPassResult wide = lavo_by_primitives(exact, context_of(s, Device{}));
  ASSERT_TRUE(lavo_pass_fits(x, context_of(s, kGpu)));
  const LavoPassResult narrow = lavo_pass(x, context_of(s, kGpu));
  EXPECT_EQ(narrow.y.dtype(), DType::bf16);
  EXPECT_EQ(narrow.carry.counts.to_vector<int64_t>(), wide.carry.counts.to_vector<int64_t>());
  const std::vector<Tensor> expected = differentiate(exact, wide);
  const std::vector<Tensor> got = differentiate(x, narrow);
  expect_close_in_bf16(got, expected, run_plainly(s, in));
}

}  // namespace linnet::test::lavo_pass_inputs
