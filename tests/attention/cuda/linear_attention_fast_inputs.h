// Shared by tests of linear attention on tensor cores: inputs with masked tokens, a call in each
// form with all its gradients, and the comparison with what the CPU computes in double.
#pragma once

#include <cmath>
#include <vector>

#include "attention/primitives/linear_attention/cuda/fast.h"
#include "attention/primitives/linear_attention/linear_attention.h"
#include "core/kernel_choice.h"
#include "tests/attention/cuda/both_devices.h"
#include "tests/attention/cuda/fused_projection.h"

namespace linnet::test {

enum class FastKind { causal, noncausal };

// T queries; as many keys where causal or `keys` is 0.
struct FastSetting {
  const char* name;
  LinearAttentionOptions options;
  int64_t B, T, H, G, K, V;
  bool state = false, masks = false;
  FastKind kind = FastKind::causal;
  int64_t keys = 0;
  bool segments = false, proportions = false;
  double decay = 0;       // the largest; 0: nothing decays
  bool channels = false;  // of each channel

  int64_t features() const { return proportions ? 2 * K : K; }
  int64_t key_tokens() const { return keys == 0 ? T : keys; }
};

inline const LinearAttentionOptions kUsual, kScaled{FeatureMap::relu, 0.7, Normalizer::add, 0.3},
    kPlain{FeatureMap::identity, 0.5, Normalizer::none, 0},
    kFloored{FeatureMap::relu, 1, Normalizer::clamp, 40.0};

// Segments of 5, 59, 1, 35, 128, 600, 5, 59, ... tokens, of which a row continues where the one
// before ended: some begin with a chunk, some are shorter, some longer than one.
inline Tensor segments_of(int64_t rows, int64_t length, Device device) {
  constexpr int kLengths[] = {5, 59, 1, 35, 128, 600};
  std::vector<int32_t> ids;
  for (int32_t id = 0; static_cast<int64_t>(ids.size()) < rows * length; ++id) {
    ids.insert(ids.end(), static_cast<size_t>(kLengths[id % 6]), id);
  }
  ids.resize(static_cast<size_t>(rows * length));
  return Tensor::from(ids, {rows, length}, device);
}

// q, k, v, memory, mass, the proportions of queries and keys and log-decays in f64, as bf16 and f32
// hold them; masked tokens hold NaN.
inline std::vector<Tensor> inputs_of(const FastSetting& s) {
  const int64_t keys = s.key_tokens();
  std::vector<Tensor> in{
      random_tensor({s.B, s.T, s.H, s.K}, "q"),
      random_tensor({s.B, keys, s.G, s.K}, "k"),
      random_tensor({s.B, keys, s.G, s.V}, "v"),
      random_tensor({s.B, s.G, s.features(), s.V}, "memory"),
      random_tensor({s.B, s.G, s.features()}, "mass"),
      random_tensor({s.B, s.T, s.H}, "p"),
      random_tensor({s.B, keys, s.G}, "r"),
      random_tensor(s.channels ? Shape{s.B, keys, s.G, s.K} : Shape{s.B, keys, s.G}, "log_decay")};
  for (int64_t i = 0; i < in[4].elements(); ++i) {
    in[4].data<double>()[i] = 1 + std::abs(in[4].data<double>()[i]);
  }
  for (size_t i = 5; i < 8; ++i) {
    for (int64_t j = 0; j < in[i].elements(); ++j) {
      double& x = in[i].data<double>()[j];
      x = (i == 7 ? -s.decay : 1) / (1 + std::exp(-x));
    }
    in[i] = in[i].to(DType::f32).to(DType::f64);
  }
  if (!s.state) in[3] = in[4] = Tensor();
  if (!s.proportions) in[5] = in[6] = Tensor();
  if (s.decay == 0) in[7] = Tensor();
  for (const size_t i : {0, 1, 2, 5, 6, 7}) {
    if (i < 3) in[i] = in[i].to(DType::bf16).to(DType::f64);
    if (s.masks && in[i].defined()) put_nan_behind(mask_of(s.B, in[i].size(1)), in[i]);
  }
  return in;
}

// y and the state, then the gradients of every defined input; `computed` is f64 or bf16.
inline std::vector<Tensor> run(const FastSetting& s, const std::vector<Tensor>& tensors,
                               Device device, DType computed) {
  LinearAttentionContext context;
  context.options = s.options;
  if (s.masks) {
    const int64_t keys = s.key_tokens();
    context.query_mask = Tensor::from(mask_of(s.B, s.T), {s.B, s.T}, device);
    context.key_mask = Tensor::from(mask_of(s.B, keys), {s.B, keys}, device);
  }
  if (s.segments) context.segments = segments_of(s.B, s.T, device);
  std::vector<Variable> in;
  for (size_t i = 0; i < tensors.size(); ++i) {
    in.push_back(input_on(device, tensors[i], i < 3 ? DType::bf16 : DType::f32, computed));
  }
  const LinearAttentionVariables variables{in[0], in[1], in[2], in[5], in[6], in[7]};
  std::vector<Variable> outputs;
  if (s.kind == FastKind::causal) {
    const auto result = linear_attention_causal(variables, context, {in[3], in[4]});
    outputs = {result.y, result.state.memory, result.state.mass};
  } else {
    const auto memory = linear_attention_memory(variables, context);
    outputs = {linear_attention_read(variables, memory, context), memory.memory, memory.mass};
  }
  return with_gradients(outputs, in);
}

inline std::vector<Tensor> run(const FastSetting& s, const std::vector<Tensor>& tensors,
                               Device device) {
  return run(s, tensors, device, usual_dtype(device));
}

inline void expect_what_the_cpu_computes(const FastSetting& s, const std::vector<Tensor>& in) {
  SCOPED_TRACE(s.name);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> expected = run(s, in, Device{});
  const std::vector<Tensor> got = run(s, in, kGpu);
  EXPECT_EQ(got[0].dtype(), DType::bf16);
  expect_close_in_bf16(got, expected, run(s, in, Device{}, DType::bf16));
}

// Logits of +-80, and features that are almost zero or zero.
inline void expect_extremes_as_on_the_cpu(FastSetting s) {
  std::vector<Tensor> in = inputs_of(s);
  s.name = "logits of 80";
  for (size_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < in[i].elements(); ++j) {
      double& x = in[i].data<double>()[j];
      x = x > 0 ? 80 : -80;
    }
  }
  expect_what_the_cpu_computes(s, in);
  s.name = "features of almost zero, or zero";
  for (const LinearAttentionOptions& options : {kUsual, kScaled}) {
    s.options = options;
    for (size_t i = 0; i < 2; ++i) in[i].fill(-80);
    expect_what_the_cpu_computes(s, in);
  }
}

// Where values have a mean and many tokens came before, the gradient of a query is a small
// difference of large sums: it must not drown in the rounding of the state.
inline void expect_small_differences_of_large_sums(FastSetting s) {
  s.state = true;
  std::vector<Tensor> in = inputs_of(s);
  const auto shift = [](const Tensor& x, double factor, double offset) {
    for (int64_t i = 0; i < x.elements(); ++i) {
      x.data<double>()[i] = x.data<double>()[i] * factor + offset;
    }
  };
  shift(in[2], 1, 2);
  in[2] = in[2].to(DType::bf16).to(DType::f64);
  shift(in[3], 64, 2 * 4096);  // of 4096 tokens before
  shift(in[4], 0, 4096);
  expect_what_the_cpu_computes(s, in);
}

// Returns what both runs gave.
inline std::vector<Tensor> expect_the_same_bits_again(const FastSetting& s) {
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> in = inputs_of(s);
  std::vector<Tensor> once = run(s, in, kGpu);
  const std::vector<Tensor> again = run(s, in, kGpu);
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_TRUE(same_bits(once[i].to(Device{}), again[i].to(Device{}))) << s.name << " " << i;
  }
  return once;
}

// Of one key every query reads its value, whatever its weight, and gradients of weights are nothing
// but rounding.
inline void expect_the_value_of_one_key(FastSetting s) {
  SCOPED_TRACE("one key");
  s.kind = FastKind::noncausal;
  s.keys = 1;
  const std::vector<Tensor> in = inputs_of(s);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> expected = run(s, in, Device{}), got = run(s, in, kGpu);
  EXPECT_TRUE(close_in_bf16(got[0], expected[0], run(s, in, Device{}, DType::bf16)[0], 0));
  for (const Tensor& each : got) {
    for (const double x : each.to(Device{}).to_vector<double>()) ASSERT_TRUE(std::isfinite(x));
  }
}

}  // namespace linnet::test
