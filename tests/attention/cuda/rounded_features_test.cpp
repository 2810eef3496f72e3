// Performer and random feature attention make features in f32: in bf16 they are rounded where
// tensor cores then compute, and what comes out is as close to double as the tolerance of bf16
// asks, as what the plain kernels make of them in full.
#include "core/kernel_choice.h"
#include "tests/attention/made_mixer.h"
#include "tests/bf16_tolerance.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;

struct Setting {
  const char *mechanism, *parameters;
  Form form;
  int64_t B = 2, T = 70, H = 2;
};

// y and the gradients of q, k, v and the layer's input, of which gates are made. Parameters are
// what bf16 holds.
std::vector<Tensor> run(const Setting& s, DType dtype, Device device) {
  constexpr int64_t K = 16;
  const int64_t B = s.B, T = s.T, H = s.H;
  MixerOptions options;
  options.width = H * K;
  options.heads = H;
  options.form = s.form;
  const test::MadeMixer mixer(s.mechanism, s.parameters, options, dtype, device, DType::bf16);
  const auto given = [&](const Shape& shape, const char* name) {
    return random_tensor(shape, name).to(DType::bf16).to(dtype).to(device);
  };
  std::vector<Variable> in;
  for (const char* name : {"q", "k", "v"}) {
    in.emplace_back(given({B, T, H, K}, name), true);
  }
  const Variable x(given({B, T, H * K}, "x"), true);
  MixerContext context;
  std::vector<uint8_t> mask(static_cast<size_t>(B * T), 1);
  for (size_t i = 0; i < mask.size(); i += 7) mask[i] = 0;
  context.key_mask = Tensor::from(mask, {B, T}, device);
  if (s.form == Form::cross) context.source_mask = context.key_mask;
  const Variable y = mixer.mix(in[0], in[1], in[2], context, {}, x).y;
  backward({y}, {given(y.shape(), "dy")});
  std::vector<Tensor> found{y.value(), in[0].grad(), in[1].grad(), in[2].grad()};
  if (x.grad().defined()) found.push_back(x.grad());
  return found;
}

std::vector<Tensor> run_kernels(const Setting& s, KernelChoice choice) {
  const UseKernels use(choice, kGpu);
  return run(s, DType::bf16, kGpu);
}

void expect_what_the_cpu_computes(const Setting& s) {
  SCOPED_TRACE(s.mechanism);
  const std::vector<Tensor> exact = run(s, DType::f64, Device{});
  const std::vector<Tensor> by_cpu = run(s, DType::bf16, Device{});
  const std::vector<Tensor> plain = run_kernels(s, KernelChoice::plain);
  const std::vector<Tensor> got = run_kernels(s, KernelChoice::tensor_cores);
  test::expect_close_in_bf16(plain, exact, by_cpu, "plain kernels,");
  test::expect_close_in_bf16(got, exact, by_cpu, "tensor cores,");
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_FALSE(test::same_bits(got[i].to(Device{}), plain[i].to(Device{}))) << i;
  }
}

TEST(CudaRoundedFeatures, GiveWhatTheCpuComputesInDouble) {
  const char* kRelu = "{kernel: relu, features: 24, redraw_steps: 0}";
  const char* kExponential = "{features: 32, redraw_steps: 0}";
  const char* kWaves = "{features: 12, redraw_steps: 0}";
  const char* kGated = "{features: 12, gate: true, redraw_steps: 0}";
  for (const Setting& s : std::vector<Setting>{{"performer", kRelu, Form::causal},
                                               {"performer", kExponential, Form::noncausal},
                                               {"performer", kExponential, Form::cross},
                                               {"performer", kExponential, Form::causal},
                                               {"rfa", kWaves, Form::causal},
                                               {"rfa", kGated, Form::causal},
                                               {"rfa", kWaves, Form::noncausal}}) {
    expect_what_the_cpu_computes(s);
  }
}

// More than a tile has are computed as two parts of columns.
TEST(CudaRoundedFeatures, TwoPartsGiveWhatTheCpuComputesInDouble) {
  expect_what_the_cpu_computes(
      {"performer", "{kernel: relu, features: 256, redraw_steps: 0}", Form::causal, 1, 40, 1});
  expect_what_the_cpu_computes(
      {"performer", "{features: 256, redraw_steps: 0}", Form::noncausal, 1, 40, 1});
}

// Tiles have features in eights, and decaying states one tile of them; the running maximum is a
// decay.
TEST(CudaRoundedFeatures, AreRefusedWhereTensorCoresDoNotCoverThem) {
  const auto refusal = [](const Setting& s) {
    return test::message_of<UsageError>([&] { run_kernels(s, KernelChoice::tensor_cores); });
  };
  EXPECT_NE(refusal({"performer", "{features: 20}", Form::noncausal})
                .find("do not cover features of 20 and values of 16"),
            std::string::npos);
  EXPECT_NE(refusal({"performer", "{features: 136}", Form::causal})
                .find("do not cover a decaying state of 136 features"),
            std::string::npos);
}

}  // namespace
}  // namespace linnet
