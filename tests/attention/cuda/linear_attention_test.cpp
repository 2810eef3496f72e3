// Linear attention on the device gives what the CPU computes in double: results, states and every
// gradient, with everything that the contract allows.
#include "attention/primitives/linear_attention/linear_attention.h"

#include "core/kernel_choice.h"
#include "tests/attention/cuda/both_devices.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;

enum class Kind { causal, noncausal, cross };

struct Setting {
  const char* name;
  Kind kind;
  LinearAttentionOptions options;
  int64_t B, Tq, Tk, H, G, K, V;
  bool reweighted = false, state = false, masks = false, segments = false;
  double decay = 0;          // the largest, about
  bool of_channels = false;  // a decay of each
};

// In [0, 1], as proportions and the masses of states are.
Tensor fractions(const Shape& shape, const char* name) {
  const Tensor x = random_tensor(shape, name);
  for (int64_t i = 0; i < x.elements(); ++i) {
    double& value = x.data<double>()[i];
    value = 0.5 + 0.5 * std::sin(value);
  }
  return x;
}

std::vector<uint8_t> mask_of(int64_t rows, int64_t length) {
  std::vector<uint8_t> mask(static_cast<size_t>(rows * length), 1);
  for (int64_t t = 0; t < length; ++t) {
    mask[static_cast<size_t>(t)] = t % 5 == 3 ? 0 : 1;
    mask[static_cast<size_t>((rows - 1) * length + t)] = t + 4 < length ? 1 : 0;
  }
  return mask;
}

// q, k, v, proportions and state as the kernels of that dtype see them; masked tokens hold NaN.
std::vector<Tensor> inputs_of(const Setting& s, DType dtype) {
  const int64_t m = s.reweighted ? 2 * s.K : s.K;
  std::vector<Tensor> in{
      random_tensor({s.B, s.Tq, s.H, s.K}, "q"),
      random_tensor({s.B, s.Tk, s.G, s.K}, "k"),
      random_tensor({s.B, s.Tk, s.G, s.V}, "v"),
      fractions({s.B, s.Tq, s.H}, "query_proportions"),
      fractions({s.B, s.Tk, s.G}, "key_proportions"),
      random_tensor({s.B, s.G, m, s.V}, "memory"),
      fractions({s.B, s.G, m}, "mass"),
      fractions(s.of_channels ? Shape({s.B, s.Tk, s.G, s.K}) : Shape({s.B, s.Tk, s.G}),
                "log_decay")};
  if (!s.reweighted) in[3] = in[4] = Tensor();
  if (!s.state) in[5] = in[6] = Tensor();
  for (int64_t i = 0; i < in[7].elements(); ++i) in[7].data<double>()[i] *= -s.decay;
  if (s.decay == 0) in[7] = Tensor();
  for (size_t i = 0; i < in.size(); ++i) {
    if (!in[i].defined()) continue;
    // Rounded as the device will see them, so that only the arithmetic differs.
    in[i] = in[i].to(i < 3 ? dtype : DType::f32).to(DType::f64);
    if (!s.masks || i == 5 || i == 6) continue;
    test::put_nan_behind(mask_of(s.B, in[i].size(1)), in[i]);
  }
  return in;
}

// Outputs, then gradients of every defined input.
std::vector<Tensor> run(const Setting& s, const std::vector<Tensor>& tensors, Device device) {
  LinearAttentionContext context;
  context.options = s.options;
  if (s.masks) {
    context.query_mask = Tensor::from(mask_of(s.B, s.Tq), {s.B, s.Tq}, device);
    context.key_mask = Tensor::from(mask_of(s.B, s.Tk), {s.B, s.Tk}, device);
  }
  if (s.segments) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < s.B * s.Tq; ++i) ids.push_back(static_cast<int32_t>(i / 7));
    context.segments = Tensor::from(ids, {s.B, s.Tq}, device);
  }
  std::vector<Variable> in;
  for (const Tensor& x : tensors) {
    in.push_back(x.defined() ? Variable(x.to(device), true) : Variable());
  }
  const LinearAttentionVariables variables{in[0], in[1], in[2], in[3], in[4], in[7]};
  std::vector<Variable> outputs;
  if (s.kind == Kind::causal) {
    const auto result = linear_attention_causal(variables, context, {in[5], in[6]});
    outputs = {result.y, result.state.memory, result.state.mass};
  } else {
    const auto memory = linear_attention_memory(variables, context);
    outputs = {linear_attention_read(variables, memory, context), memory.memory, memory.mass};
  }
  for (const Variable& output : outputs) EXPECT_EQ(output.value().device(), device);
  const bool narrow = tensors[0].dtype() == DType::bf16;
  return test::with_gradients(outputs, in, narrow ? DType::bf16 : DType::f32);
}

std::vector<Setting> settings() {
  const LinearAttentionOptions usual, scaled{FeatureMap::relu, 0.7, Normalizer::add, 0.3},
      plain{FeatureMap::identity, 0.5, Normalizer::none, 0},
      floored{FeatureMap::relu, 1, Normalizer::clamp, 3.0},
      unnormalized{FeatureMap::elu1, 1, Normalizer::none, 0},
      signed_map{FeatureMap::elu, 1, Normalizer::none, 0};
  return {
      {"causal", Kind::causal, usual, 2, 19, 19, 2, 2, 5, 3},
      {"causal wide", Kind::causal, usual, 1, 10, 10, 1, 1, 64, 64},
      {"causal with all", Kind::causal, scaled, 2, 21, 21, 4, 2, 6, 41, true, true, true, true},
      {"causal state", Kind::causal, plain, 2, 9, 9, 3, 1, 4, 5, false, true},
      {"causal, many heads of one key head", Kind::causal, scaled, 1, 7, 7, 11, 1, 3, 4, false,
       true},
      {"causal, as wide as kernels go", Kind::causal, scaled, 1, 3, 3, 1, 1, 128, 256, true, true},
      {"causal, wider values", Kind::causal, scaled, 2, 5, 5, 2, 1, 4, 516, true, true, true, true,
       1},
      {"cross, wider values", Kind::cross, usual, 1, 3, 4, 2, 1, 4, 300, false, false, true},
      {"causal floored", Kind::causal, floored, 2, 17, 17, 2, 2, 4, 5, true, false, true},
      {"causal segments", Kind::causal, unnormalized, 2, 16, 16, 2, 1, 8, 2, false, true, false,
       true},
      {"decoding", Kind::causal, usual, 3, 1, 1, 2, 2, 4, 4, true, true},
      {"decaying", Kind::causal, usual, 2, 37, 37, 2, 2, 5, 3, false, false, false, false, 0.5},
      {"decaying with all", Kind::causal, scaled, 2, 40, 40, 4, 2, 6, 41, true, true, true, true,
       2},
      {"decaying strongly, from a state", Kind::causal, plain, 2, 9, 9, 3, 1, 4, 5, false, true,
       false, false, 300},
      {"decaying, one token", Kind::causal, usual, 3, 1, 1, 2, 1, 4, 4, false, true, false, false,
       1},
      {"channels decaying", Kind::causal, usual, 2, 37, 37, 2, 2, 5, 3, false, false, false, false,
       0.5, true},
      {"channels decaying with all", Kind::causal, scaled, 2, 40, 40, 4, 2, 6, 41, false, true,
       true, true, 2, true},
      {"channels decaying strongly, from a state", Kind::causal, plain, 2, 9, 9, 3, 1, 4, 5, false,
       true, false, false, 300, true},
      {"channels decaying, wide", Kind::causal, plain, 1, 20, 20, 2, 2, 64, 64, false, true, false,
       false, 1, true},
      {"channels decaying, wider values", Kind::causal, scaled, 2, 5, 5, 2, 1, 44, 516, false, true,
       true, true, 1, true},
      {"channels decaying, one token", Kind::causal, usual, 3, 1, 1, 2, 1, 4, 4, false, true, false,
       false, 1, true},
      {"signed features", Kind::causal, signed_map, 1, 9, 9, 1, 1, 4, 4},
      {"no tokens", Kind::causal, usual, 2, 0, 0, 2, 1, 4, 4, false, true},
      {"noncausal", Kind::noncausal, usual, 2, 19, 19, 2, 2, 5, 3},
      {"noncausal with all", Kind::noncausal, scaled, 2, 21, 21, 4, 2, 6, 41, true, false, true,
       true},
      {"noncausal long", Kind::noncausal, floored, 1, 300, 300, 1, 1, 3, 2, false, false, true},
      {"cross", Kind::cross, usual, 2, 6, 23, 4, 2, 5, 7, true, false, true},
      {"cross without keys", Kind::cross, scaled, 2, 6, 0, 2, 2, 5, 7},
  };
}

TEST(CudaLinearAttention, GivesWhatTheCpuComputesInDouble) {
  for (const Setting& s : settings()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(std::string(s.name) + " " + std::string(name_of(dtype)));
      const std::vector<Tensor> wide = inputs_of(s, dtype);
      std::vector<Tensor> narrow = wide;
      for (size_t i = 0; i < narrow.size(); ++i) {
        if (narrow[i].defined()) narrow[i] = narrow[i].to(i < 3 ? dtype : DType::f32);
      }
      const std::vector<Tensor> expected = run(s, wide, Device{});
      const std::vector<Tensor> got = run(s, narrow, kGpu);
      EXPECT_EQ(got[0].dtype(), dtype);
      EXPECT_EQ(got[1].dtype(), DType::f32);
      test::expect_close_in(dtype, got, expected, 1e-5, [&] { return run(s, narrow, Device{}); });
    }
  }
}

TEST(CudaLinearAttention, FeaturesByThemselvesAreThoseOfTheCpu) {
  const Tensor mask = Tensor::from(mask_of(2, 9), {2, 9});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor x = random_tensor({2, 9, 3, 5}, "x").to(dtype).to(DType::f64);
    const auto run = [&](DType at, Device device) {
      const Variable leaf(x.to(at).to(device), true);
      const Variable y = linear_attention_features(leaf, FeatureMap::elu1, 0.7, mask.to(device));
      backward({y}, {random_tensor(y.shape(), "dy").to(y.dtype()).to(device)});
      return std::vector<Tensor>{y.value(), leaf.grad()};
    };
    const auto expected = run(DType::f64, Device{}), got = run(dtype, kGpu);
    EXPECT_EQ(got[0].dtype(), DType::f32);
    EXPECT_CLOSE(got[0], expected[0], 1e-6);
    test::expect_close_in(dtype, {got[1]}, {expected[1]}, 2e-6,
                          [&] { return std::vector<Tensor>{run(dtype, Device{})[1]}; });
  }
}

TEST(CudaLinearAttention, RepeatsBitForBitAndLooksAtNothingLater) {
  const Setting s{"", Kind::causal, {}, 2, 19, 19, 2, 1, 5, 3, true};
  std::vector<Tensor> in = inputs_of(s, DType::f32);
  for (Tensor& x : in) x = x.defined() ? x.to(DType::f32) : x;
  const std::vector<Tensor> once = run(s, in, kGpu), again = run(s, in, kGpu);
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_TRUE(test::same_bits(once[i].to(Device{}), again[i].to(Device{})));
  }
  in[2].data<float>()[18 * 3] = 5;  // the last value of row 0
  const std::vector<float> before = once[0].to_vector<float>();
  const std::vector<float> after = run(s, in, kGpu)[0].to_vector<float>();
  for (size_t i = 0; i < 18 * 2 * 3; ++i) ASSERT_EQ(before[i], after[i]);
  EXPECT_NE(before[18 * 2 * 3], after[18 * 2 * 3]);
}

TEST(CudaLinearAttention, RefusesWhatItsKernelsDoNotCover) {
  const auto call = [](int64_t K, DType dtype) {
    const Variable x(Tensor::zeros({1, 2, 1, K}, dtype, kGpu));
    linear_attention_causal({x, x, x, {}, {}}, {});
  };
  EXPECT_NE(test::message_of<Error>([&] {
              call(257, DType::f32);
            }).find("257 features are more than the 256 that the CUDA kernels cover; use --device"),
            std::string::npos);
  EXPECT_NE(test::message_of<Error>([&] { call(4, DType::f64); }).find("use --device cpu"),
            std::string::npos);
  const Variable there(Tensor::zeros({1, 2, 1, 4}, DType::f32, kGpu));
  const Variable here(Tensor::zeros({1, 2, 1, 4}));
  EXPECT_NE(test::message_of<Error>([&] {
              linear_attention_causal({there, here, there, {}, {}}, {});
            }).find("cuda:0"),
            std::string::npos);
}

}  // namespace
}  // namespace linnet
