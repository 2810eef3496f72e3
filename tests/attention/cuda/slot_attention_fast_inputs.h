// Shared by tests of slot attention on tensor cores: inputs with masked tokens and empty slots, a
// call in each form with all its gradients, and the comparison with what the CPU computes in
// double.
#pragma once

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "attention/primitives/slot_attention/slot_attention.h"
#include "core/kernel_choice.h"
#include "tests/attention/cuda/both_devices.h"

namespace linnet::test::slot_attention_fast_inputs {

struct Setting {
  const char* name;
  int64_t B, T, H, N, K, V;
  bool state = false, masks = false, mask_empty = true;
  double scale = 0.4;
  int64_t readers = 0;                 // of a finished memory; 0: causal
  std::vector<int64_t> segments = {};  // where they begin in every row, and in row 1 a token later
  double dropout = 0;
  SlotControl control = SlotControl::exp;
  bool means = true;  // normalised when read
  double floor = 1e-6;
};

// Row 0 lacks its first tokens and then every fifth, the last row its end.
inline std::vector<uint8_t> mask_of(int64_t rows, int64_t length) {
  std::vector<uint8_t> mask(static_cast<size_t>(rows * length), 1);
  for (int64_t t = 0; t < length; ++t) {
    mask[static_cast<size_t>(t)] = t < 3 || t % 5 == 3 ? 0 : 1;
    mask[static_cast<size_t>((rows - 1) * length + t)] = t < length / 2 ? 1 : 0;
  }
  return mask;
}

inline std::vector<int64_t> every_token(int64_t count) {
  std::vector<int64_t> begins(static_cast<size_t>(count));
  std::iota(begins.begin(), begins.end(), int64_t{0});
  return begins;
}

inline Tensor segment_ids(const Setting& s) {
  std::vector<int32_t> ids(static_cast<size_t>(s.B * s.T), 7);
  for (int64_t i = 0; i < s.B * s.T; ++i) {
    for (const int64_t begin : s.segments) {
      if (i % s.T >= begin + i / s.T) ids[static_cast<size_t>(i)] = static_cast<int32_t>(begin);
    }
  }
  return Tensor::from(ids, {s.B, s.T});
}

// Given weights of both signs: small ones where sums are read as they are, or their logits would
// grow with the length; others with sums that grow. Nothing is written to some slots, and to slot 0
// from the middle on only.
inline void make_weights(const Setting& s, const Tensor& logits) {
  for (int64_t i = 0; i < logits.elements(); ++i) {
    const int64_t slot = i % s.N, token = i / s.N / s.H % s.T;
    double& weight = logits.data<double>()[i];
    weight = s.means ? 0.5 + 0.25 * weight : 0.1 * weight;
    if (slot % 5 == 3 || (slot == 0 && token < s.T / 2)) weight = 0;
  }
}

// q, k, v, logits, keys, values and mass in f64, as bf16 and f32 hold the first six.
inline std::vector<Tensor> inputs_of(const Setting& s) {
  std::vector<Tensor> in{random_tensor({s.B, s.readers == 0 ? s.T : s.readers, s.H, s.K}, "q"),
                         random_tensor({s.B, s.T, s.H, s.K}, "k"),
                         random_tensor({s.B, s.T, s.H, s.V}, "v"),
                         random_tensor({s.B, s.T, s.H, s.N}, "logits"),
                         random_tensor({s.B, s.H, s.N, s.K}, "keys"),
                         random_tensor({s.B, s.H, s.N, s.V}, "values"),
                         random_tensor({s.B, s.H, s.N}, "mass")};
  const bool given = s.control == SlotControl::given;
  if (given) make_weights(s, in[3]);
  for (size_t i = 0; i < 4; ++i) in[i] = in[i].to(DType::bf16).to(DType::f64);
  for (size_t i = 4; i < 6; ++i) in[i] = in[i].to(DType::f32).to(DType::f64);
  // Memories as of many tokens, which matter for long; some slots are empty.
  for (int64_t i = 0; i < in[6].elements(); ++i) {
    double& mass = in[6].data<double>()[i];
    mass = given ? 3 + std::abs(mass) : 3 + mass;
  }
  for (int64_t i = 1; i < in[6].elements(); i += 3) {
    in[6].data<double>()[i] = given ? 0 : -std::numeric_limits<double>::infinity();
    for (const size_t part : {size_t{4}, size_t{5}}) {
      const int64_t width = in[part].size(3);
      for (int64_t c = 0; c < width; ++c) in[part].data<double>()[i * width + c] = 0;
    }
  }
  if (!s.state) in[4] = in[5] = in[6] = Tensor();
  return in;
}

// Masked tokens hold NaN.
inline void put_nan_behind(const std::vector<uint8_t>& mask, std::vector<Tensor>& in) {
  for (size_t i = 0; i < 4; ++i) {
    const auto tokens = static_cast<int64_t>(mask.size());
    if (in[i].size(0) * in[i].size(1) != tokens) continue;  // readers from elsewhere
    test::put_nan_behind(mask, in[i]);
  }
}

// o, the memory, then the gradients of every defined input.
// `computed` is f64 or bf16.
inline std::vector<Tensor> run(const Setting& s, const std::vector<Tensor>& tensors, Device device,
                               const std::vector<uint8_t>& mask, DType computed) {
  SlotAttentionContext context;
  context.options.scale = s.scale;
  context.options.mask_empty = s.mask_empty;
  context.options.control = s.control;
  if (!s.means) context.options.normalizer = SlotNormalizer::none;
  context.options.floor = s.floor;
  if (s.dropout > 0) {
    context.options.dropout = s.dropout;
    context.options.dropout_key = RandomKey{3, 8, 5};
    std::vector<int64_t> examples(static_cast<size_t>(s.B));
    std::iota(examples.begin(), examples.end(), int64_t{40});
    context.place = {Tensor::from(examples, {s.B}, device), 17};
  }
  if (!s.segments.empty()) context.segments = segment_ids(s).to(device);
  if (!mask.empty()) {
    context.key_mask = Tensor::from(mask, {s.B, s.T}, device);
    if (s.readers == 0 || s.readers == s.T) context.query_mask = context.key_mask;
  }
  std::vector<Variable> in;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const DType stored = i < 4 ? DType::bf16 : i < 6 ? DType::f32 : DType::f64;
    in.push_back(test::input_on(device, tensors[i], stored, computed));
  }
  const SlotAttentionVariables variables{in[0], in[1], in[2], in[3]};
  SlotAttentionResult result;
  if (s.readers == 0) {
    result = slot_attention_causal(variables, context, {in[4], in[5], in[6]});
  } else {
    result.state = slot_attention_memory(variables, context);
    result.o = slot_attention_read(variables, result.state, context);
  }
  return test::with_gradients({result.o, result.state.keys, result.state.values, result.state.mass},
                              in);
}

inline std::vector<Tensor> run(const Setting& s, const std::vector<Tensor>& tensors, Device device,
                               const std::vector<uint8_t>& mask = {}) {
  return run(s, tensors, device, mask, usual_dtype(device));
}

// Infinite masses (empty slots) agree exactly and count as 0 otherwise.
inline Tensor finite(const Tensor& x, std::vector<bool>& infinite) {
  const Tensor out = x.to(Device{}).to(DType::f64).clone();
  for (int64_t i = 0; i < out.elements(); ++i) {
    double& value = out.data<double>()[i];
    infinite.push_back(std::isinf(value));
    if (infinite.back()) value = 0;
  }
  return out;
}

inline void expect_what_the_cpu_computes(const Setting& s, std::vector<Tensor> in,
                                         const std::vector<uint8_t>& mask = {}) {
  SCOPED_TRACE(s.name);
  if (!mask.empty()) put_nan_behind(mask, in);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> expected = run(s, in, Device{}, mask);
  const std::vector<Tensor> got = run(s, in, kGpu, mask);
  const std::vector<Tensor> plain = run(s, in, Device{}, mask, DType::bf16);
  ASSERT_EQ(got.size(), expected.size());
  EXPECT_EQ(got[0].dtype(), DType::bf16);
  for (size_t i = 0; i < got.size(); ++i) {
    std::vector<bool> infinite[3];
    const Tensor a = finite(got[i], infinite[0]), b = finite(expected[i], infinite[1]);
    EXPECT_EQ(infinite[0], infinite[1]) << i;
    EXPECT_TRUE(close_in_bf16(a, b, finite(plain[i], infinite[2]), i)) << i;
    EXPECT_EQ(infinite[2], infinite[1]) << i;
  }
}

}  // namespace linnet::test::slot_attention_fast_inputs
