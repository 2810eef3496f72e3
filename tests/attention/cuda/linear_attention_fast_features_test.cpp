// Features that hide what they are made of, re-weighted by proportions or of the map elu, are made
// inside the kernels on tensor cores: these give what the CPU computes in double, in every form, at
// widths that fill tiles and that do not.
#include "tests/attention/cuda/linear_attention_fast_inputs.h"

namespace linnet {
namespace {

namespace fast = cuda::linear_attention_fast;
using Setting = test::FastSetting;
using test::expect_what_the_cpu_computes;
using test::inputs_of;
using test::kFloored;
using test::kGpu;
using test::kPlain;
using test::kScaled;
using test::kUsual;
using test::random_tensor;
constexpr auto kCausal = test::FastKind::causal;
constexpr auto kAll = test::FastKind::noncausal;

// In none of the tiles of 64 and 128 columns do 48 and 80 features end.
TEST(CudaLinearAttentionFastFeatures, ReweightedCausal) {
  for (const Setting& s : std::vector<Setting>{
           {"16 features", kUsual, 2, 70, 2, 1, 8, 16, true, true, kCausal, 0, false, true},
           {"32", kFloored, 2, 67, 2, 2, 16, 16, false, true, kCausal, 0, true, true},
           {"48", kUsual, 2, 66, 2, 1, 24, 24, true, true, kCausal, 0, false, true},
           {"80", kScaled, 1, 41, 2, 1, 40, 24, true, true, kCausal, 0, false, true},
           {"128", kScaled, 1, 40, 1, 1, 64, 64, true, true, kCausal, 0, true, true},
           {"wider values", kPlain, 1, 35, 2, 1, 8, 72, true, false, kCausal, 0, false, true},
           {"tiles of values", kUsual, 1, 33, 2, 1, 24, 136, true, true, kCausal, 0, false, true},
           {"splits", kScaled, 1, 521, 2, 1, 8, 16, true, true, kCausal, 0, false, true}}) {
    expect_what_the_cpu_computes(s, inputs_of(s));
  }
}

// Where a segment has just begun, the gradient of a query is a difference of nearly equal terms,
// of one key 0, each as large as |dy . v k / D|. D is the sum of weights as they were rounded, by
// up to 2^-9 each, dy . y is not made of them: so much of the terms remains, here 2.2e-2 of the
// largest gradient.
TEST(CudaLinearAttentionFastFeatures, ReweightedWhereSegmentsBegin) {
  const Setting s{"80", kScaled, 1, 41, 2, 1, 40, 24, true, true, kCausal, 0, true, true};
  const std::vector<Tensor> in = inputs_of(s);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const std::vector<Tensor> expected = run(s, in, Device{}), got = run(s, in, kGpu);
  test::expect_close_in_bf16(got, expected, run(s, in, Device{}, DType::bf16));
}

TEST(CudaLinearAttentionFastFeatures, ReweightedNoncausal) {
  for (const Setting& s : std::vector<Setting>{
           {"16 features", kScaled, 2, 70, 2, 1, 8, 16, false, true, kAll, 0, true, true},
           {"48", kFloored, 1, 66, 2, 1, 24, 24, false, true, kAll, 0, false, true},
           {"80, cross", kUsual, 2, 40, 2, 2, 40, 64, false, true, kAll, 70, false, true},
           {"128", kUsual, 2, 33, 1, 1, 64, 64, false, true, kAll, 0, true, true},
           {"tiles of values", kUsual, 1, 33, 2, 1, 16, 136, false, true, kAll, 21, false, true},
           {"splits", kPlain, 1, 521, 2, 1, 8, 16, false, true, kAll, 0, false, true}}) {
    expect_what_the_cpu_computes(s, inputs_of(s));
  }
}

// Near -1 features of elu do not show its slope.
TEST(CudaLinearAttentionFastFeatures, Elu) {
  const LinearAttentionOptions elu{FeatureMap::elu, 0.8, Normalizer::none, 0};
  for (const Setting& s : std::vector<Setting>{
           {"causal", elu, 2, 66, 2, 1, 16, 16, true, true},
           {"wide", elu, 1, 40, 1, 1, 128, 128, false, true},
           {"between the widths of tiles", elu, 1, 20, 1, 1, 24, 40, false, true},
           {"re-weighted", elu, 1, 40, 1, 1, 24, 16, true, true, kCausal, 0, false, true},
           {"noncausal", elu, 2, 66, 2, 1, 16, 16, false, true, kAll},
           {"noncausal, wide", elu, 1, 40, 1, 1, 72, 128, false, true, kAll, 21}}) {
    std::vector<Tensor> in = inputs_of(s);
    for (int64_t i = 0; i < in[1].elements(); i += 3) in[1].data<double>()[i] -= 6;
    in[1] = in[1].to(DType::bf16).to(DType::f64);
    expect_what_the_cpu_computes(s, in);
  }
}

// Proportions of 0 and of 1, where a half of the features vanishes.
TEST(CudaLinearAttentionFastFeatures, ProportionsAtTheEnds) {
  Setting s{"", kUsual, 1, 66, 1, 1, 16, 16, false, true, kCausal, 0, false, true};
  for (const test::FastKind kind : {kCausal, kAll}) {
    s.kind = kind;
    const std::vector<Tensor> in = inputs_of(s);
    for (int64_t i = 0; i < 66; ++i) {
      double& query = in[5].data<double>()[i];
      double& key = in[6].data<double>()[i];
      if (!std::isnan(query)) query = i % 2;
      if (!std::isnan(key)) key = i / 2 % 2;
    }
    // Some tokens see only keys across a right angle, whose weights are 0: they are not divided.
    s.options.epsilon = 1;
    expect_what_the_cpu_computes(s, in);
  }
}

TEST(CudaLinearAttentionFastFeatures, ExtremeInputsStayFinite) {
  for (const test::FastKind kind : {kCausal, kAll}) {
    test::expect_extremes_as_on_the_cpu(
        {"", kUsual, 1, 80, 1, 1, 24, 16, false, false, kind, 0, false, true});
  }
  test::expect_the_value_of_one_key(
      {"", kUsual, 1, 40, 1, 1, 24, 16, false, false, kAll, 0, false, true});
}

// Values behind masks, NaN here, have no gradient.
TEST(CudaLinearAttentionFastFeatures, MaskedTokensHaveNoGradient) {
  Setting s{"", kScaled, 2, 70, 1, 1, 24, 16, false, true, kCausal, 0, false, true};
  const std::vector<uint8_t> mask = test::mask_of(s.B, s.T);
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  for (const test::FastKind kind : {kCausal, kAll}) {
    s.kind = kind;
    const std::vector<Tensor> found = run(s, inputs_of(s), kGpu);
    ASSERT_EQ(found.size(), size_t{8});
    for (size_t i = 3; i < found.size(); ++i) {  // dq, dk, dv and those of proportions
      const std::vector<double> numbers = found[i].to(Device{}).to_vector<double>();
      const size_t width = numbers.size() / mask.size();
      for (size_t j = 0; j < numbers.size(); ++j) {
        ASSERT_TRUE(std::isfinite(numbers[j])) << i << " " << j;
        if (mask[j / width] != 0) continue;
        ASSERT_EQ(numbers[j], 0) << i << " " << j;
      }
    }
  }
}

TEST(CudaLinearAttentionFastFeatures, RepeatBitForBit) {
  for (const test::FastKind kind : {kCausal, kAll}) {
    test::expect_the_same_bits_again(
        {"", kScaled, 1, 521, 2, 1, 8, 16, false, true, kind, 0, false, true});
  }
}

// q, k, v and their gradients [B,T,3,H,K] in one array each, with their proportions.
struct Fused {
  static constexpr int64_t B = 2, T = 70, H = 2, K = 24;
  Tensor x = random_tensor({B, T, 3, H, K}, "fused").to(DType::bf16).to(kGpu);
  Tensor dx = Tensor::empty(x.shape(), DType::bf16, kGpu);
  Tensor dy = random_tensor({B, T, H, K}, "dy").to(DType::bf16).to(kGpu);
  Tensor y = Tensor::empty({B, T, H, K}, DType::bf16, kGpu);
  Tensor denominators = floats({B, T, H}), corrections = floats({B, T, H});
  Tensor dproportions[2] = {floats({B, T, H}), floats({B, T, H})};
  Tensor proportions[2];

  Fused() {
    for (int side = 0; side < 2; ++side) {
      const Tensor p = random_tensor({B, T, H}, side == 0 ? "p" : "r");
      for (int64_t i = 0; i < p.elements(); ++i) {
        p.data<double>()[i] = 0.5 + 0.5 * std::sin(p.data<double>()[i]);
      }
      proportions[side] = p.to(DType::f32).to(kGpu);
    }
  }
  static Tensor floats(const Shape& shape) { return Tensor::empty(shape, DType::f32, kGpu); }

  fast::Forward forward() const {
    fast::Forward call;
    call.device = kGpu;
    call.q = test::part_view(x, 0);
    call.k = test::part_view(x, 1);
    call.v = test::part_view(x, 2);
    call.set_features({}, cuda::pointer<const float>(proportions[0]),
                      cuda::pointer<const float>(proportions[1]));
    call.y = {cuda::pointer<cuda::kernel_bf16>(y), B, T, H, K};
    call.denominators = cuda::pointer<float>(denominators);
    return call;
  }
  fast::Backward backward() const {
    fast::Backward call;
    static_cast<fast::Forward&>(call) = forward();
    call.dy = {cuda::pointer<const cuda::kernel_bf16>(dy), B, T, H, K};
    call.corrections = cuda::pointer<float>(corrections);
    call.dq = test::part_view(dx, 0);
    call.dk = test::part_view(dx, 1);
    call.dv = test::part_view(dx, 2);
    call.dquery_proportions = cuda::pointer<float>(dproportions[0]);
    call.dkey_proportions = cuda::pointer<float>(dproportions[1]);
    return call;
  }
  // The same arrays, each for itself.
  std::vector<Variable> dense() const {
    std::vector<Variable> result;
    for (int64_t part = 0; part < 3; ++part) {
      result.emplace_back(test::part_of(x, part).to(kGpu), true);
    }
    for (const Tensor& p : proportions) result.emplace_back(p, true);
    return result;
  }
  void expect_gradients_of(const std::vector<Variable>& dense) const {
    for (int64_t part = 0; part < 3; ++part) {
      const Tensor gradient = dense[static_cast<size_t>(part)].grad().to(Device{});
      EXPECT_TRUE(test::same_bits(test::part_of(dx, part), gradient)) << part;
    }
    for (size_t side = 0; side < 2; ++side) {
      EXPECT_TRUE(
          test::same_bits(dproportions[side].to(Device{}), dense[3 + side].grad().to(Device{})))
          << side;
    }
  }
};

TEST(CudaLinearAttentionFastFeatures, FusedProjectionsAreReadAndWrittenInPlace) {
  const Fused fused;
  const std::vector<Variable> dense = fused.dense();
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const Variable expected =
      linear_attention_causal({dense[0], dense[1], dense[2], dense[3], dense[4]}, {}).y;
  backward({expected}, {fused.dy});
  fast::causal_forward(fused.forward());
  EXPECT_TRUE(test::same_bits(fused.y.to(Device{}), expected.value().to(Device{})));
  fast::causal_backward(fused.backward());
  fused.expect_gradients_of(dense);
}

TEST(CudaLinearAttentionFastFeatures, FusedProjectionsAreReadAndWrittenInPlaceNoncausal) {
  const Fused fused;
  const std::vector<Variable> dense = fused.dense();
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  const LinearAttentionVariables variables{dense[0], dense[1], dense[2], dense[3], dense[4]};
  const Variable expected =
      linear_attention_read(variables, linear_attention_memory(variables, {}), {});
  backward({expected}, {fused.dy});

  const Shape shape{Fused::B, Fused::H, 2 * Fused::K, Fused::K};
  const Shape narrow{Fused::B, Fused::H, 2 * Fused::K};
  const Tensor memory = Fused::floats(shape), mass = Fused::floats(narrow);
  const Tensor dmemory = Fused::floats(shape), dmass = Fused::floats(narrow);
  fast::Forward forward = fused.forward();
  forward.state_out = {cuda::pointer<float>(memory), cuda::pointer<float>(mass)};
  fast::memory_forward(forward);
  forward.state_in = {forward.state_out.memory, forward.state_out.mass};
  fast::read_forward(forward);
  EXPECT_TRUE(test::same_bits(fused.y.to(Device{}), expected.value().to(Device{})));
  fast::Backward call = fused.backward();
  call.state_in = forward.state_in;
  call.dstate_in = {cuda::pointer<float>(dmemory), cuda::pointer<float>(dmass)};
  fast::read_backward(call);
  call.dstate_out = {call.dstate_in.memory, call.dstate_in.mass};
  fast::memory_backward(call);
  fused.expect_gradients_of(dense);
}

// Heads that are no multiple of 8 are left to the plain kernels.
TEST(CudaLinearAttentionFastFeatures, OtherReweightedHeadsArePlain) {
  for (const Setting& s : std::vector<Setting>{
           {"12", kScaled, 1, 66, 1, 1, 12, 24, false, true, kCausal, 0, false, true},
           {"36, cross", kUsual, 1, 20, 2, 2, 36, 16, false, true, kAll, 30, false, true}}) {
    SCOPED_TRACE(s.name);
    const std::vector<Tensor> in = inputs_of(s);
    const std::vector<Tensor> expected = run(s, in, Device{}), got = run(s, in, kGpu);
    test::expect_close_in_bf16(got, expected, run(s, in, Device{}, DType::bf16));
    const UseKernels use(KernelChoice::tensor_cores, kGpu);
    EXPECT_NE(test::message_of<UsageError>([&] {
                run(s, in, kGpu);
              }).find(concat("do not cover re-weighted heads of ", s.K)),
              std::string::npos);
  }
}

}  // namespace
}  // namespace linnet
