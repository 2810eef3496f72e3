// Linear attention on tensor cores over long sequences: sums over many chunks keep the precision of
// f32.
#include "tests/attention/cuda/linear_attention_fast_inputs.h"

namespace linnet {
namespace {

namespace fast = cuda::linear_attention_fast;
using test::kGpu;

// Positive numbers that bf16 holds.
Tensor positive(const Shape& shape, const char* name) {
  const Tensor x = test::random_tensor(shape, name);
  for (int64_t i = 0; i < x.elements(); ++i) {
    x.data<double>()[i] = 0.5 + std::abs(x.data<double>()[i]);
  }
  return x.to(DType::bf16);
}

// The largest relative error of a state S [m,V] against the sums of left_t right_t^T.
double worst_error(const Tensor& state, const Tensor& left, const Tensor& right) {
  const int64_t T = left.size(1), m = left.size(3), V = right.size(3);
  const std::vector<double> lefts = left.to_vector<double>(), rights = right.to_vector<double>();
  const std::vector<double> got = state.to(Device{}).to_vector<double>();
  double worst = 0;
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < V; ++c) {
      double sum = 0;
      for (int64_t t = 0; t < T; ++t) {
        sum += lefts[static_cast<size_t>(t * m + r)] * rights[static_cast<size_t>(t * V + c)];
      }
      const double error = std::abs(got[static_cast<size_t>(r * V + c)] / sum - 1);
      if (!(error <= worst)) worst = error;
    }
  }
  return worst;
}

// Products on tensor cores cut sums off: a state that they alone carry through 1024 of them is
// 2e-5 too small. One segment, because a sequence that has them is scanned in one split.
TEST(CudaLinearAttentionFastLong, SumsOverManyChunksDoNotDrift) {
  constexpr int64_t T = 16384, K = 16;
  const Tensor k = positive({1, T, 1, K}, "k"), v = positive({1, T, 1, K}, "v");
  const Tensor k_there = k.to(kGpu), v_there = v.to(kGpu);
  const Tensor segments = Tensor::zeros({1, T}, DType::i32, kGpu);
  const Tensor memory = Tensor::empty({1, 1, K, K}, DType::f32, kGpu);
  const Tensor mass = Tensor::empty({1, 1, K}, DType::f32, kGpu);
  const Tensor y = Tensor::empty({1, T, 1, K}, DType::bf16, kGpu);
  const Tensor dq = Tensor::empty(y.shape(), DType::bf16, kGpu);
  const Tensor dk = Tensor::empty(y.shape(), DType::bf16, kGpu);
  const Tensor dv = Tensor::empty(y.shape(), DType::bf16, kGpu);
  const Tensor numbers = Tensor::empty({1, T, 1}, DType::f32, kGpu);
  const auto view = [](const Tensor& x) {
    return fast::Writes{cuda::pointer<cuda::kernel_bf16>(x), 1, T, 1, K};
  };
  const fast::Reads keys = view(k_there), values = view(v_there);

  fast::Forward forward;
  forward.device = kGpu;
  forward.q = forward.k = keys;
  forward.v = values;
  forward.set_features({FeatureMap::identity, 1, Normalizer::none, 0});
  forward.segments = cuda::pointer<const int32_t>(segments);
  forward.y = view(y);
  forward.state_out = {cuda::pointer<float>(memory), cuda::pointer<float>(mass)};
  fast::causal_forward(forward);
  EXPECT_TRUE(worst_error(memory, k, v) <= 2e-6) << worst_error(memory, k, v);
  const Tensor ones = Tensor::full({1, T, 1, 1}, 1.0, DType::bf16);
  EXPECT_TRUE(worst_error(mass, k, ones) <= 2e-6) << worst_error(mass, k, ones);

  fast::Backward backward;
  static_cast<fast::Forward&>(backward) = forward;
  backward.dy = values;
  backward.corrections = cuda::pointer<float>(numbers);
  backward.dq = view(dq);
  backward.dk = view(dk);
  backward.dv = view(dv);
  backward.dstate_in = forward.state_out;
  fast::causal_backward(backward);
  EXPECT_TRUE(worst_error(memory, k, v) <= 2e-6) << worst_error(memory, k, v);
}

}  // namespace
}  // namespace linnet
