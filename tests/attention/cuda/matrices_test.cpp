// Small matrices, landmarks and sampled rows on the CUDA device against the CPU's double precision.
#include "attention/primitives/matrices/matrices.h"

#include "attention/nystromformer/landmark_means.h"
#include "attention/skyformer/preconditioner.h"
#include "attention/skyformer/sampled_rows.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

constexpr int64_t B = 2, T = 7, H = 2, K = 3;

// Tokens 1 and 5 of the first row are padding that holds NaN; the second row has three valid ones.
struct Problem {
  Tensor x = test::random_tensor({B, T, H, K}, "x"), mask = Tensor::full({B, T}, 1, DType::u8);
  Problem() {
    for (const int64_t token : {1, 5, 7, 9, 11, 13}) {
      mask.data<uint8_t>()[token] = 0;
      std::fill_n(x.data<double>() + token * H * K, H * K, std::nan(""));
    }
  }
};

// Where operations run, and what they give: outputs, then gradients.
struct Results {
  DType dtype;
  Device device;
  std::vector<Tensor> out;

  Variable leaf(const Tensor& x) const { return Variable(x.to(dtype).to(device), true); }
  void add(const std::vector<Variable>& outputs, const std::vector<Variable>& leaves) {
    std::vector<Tensor> seeds;
    for (const Variable& y : outputs) {
      out.push_back(y.value().to(Device{}));
      seeds.push_back(test::random_tensor(y.shape(), "seed").to(dtype).to(device));
    }
    backward(outputs, seeds);
    for (const Variable& x : leaves) out.push_back(x.grad().to(Device{}));
  }
};

template <typename Body>
void expect_same(const Body& body, double tolerance = 3e-6) {
  Results cpu{DType::f64, Device{}, {}}, gpu{DType::f32, test::kGpu, {}};
  body(cpu);
  body(gpu);
  ASSERT_EQ(cpu.out.size(), gpu.out.size());
  for (size_t i = 0; i < cpu.out.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_CLOSE(gpu.out[i], cpu.out[i], tolerance);
  }
}

// Positive matrices whose diagonals weigh most.
Tensor positive(int64_t G, int64_t p) {
  const Tensor a = test::random_tensor({G, p, p}, "a");
  for (int64_t i = 0; i < a.elements(); ++i) {
    double& value = a.data<double>()[i];
    value = std::abs(value) / static_cast<double>(p) + (i % p == i / p % p ? 1 : 0);
  }
  return a;
}

TEST(CudaMatrices, AreThoseOfTheCpu) {
  expect_same([](Results& run) {
    run.out.push_back(unit_values(B, 5, H, run.dtype, run.device).to(Device{}));
  });
  for (const InverseNorm norm : {InverseNorm::matrix, InverseNorm::batch}) {
    expect_same([&](Results& run) {
      const Variable a = run.leaf(positive(3, 5));
      run.add({iterated_inverse(a, 4, norm)}, {a});
    });
  }
}

TEST(CudaLandmarkMeans, AreThoseOfTheCpu) {
  const Problem p;
  for (const LandmarkPadding padding :
       {LandmarkPadding::valid, LandmarkPadding::row, LandmarkPadding::row_of_zeros}) {
    for (const Tensor& mask : {p.mask, Tensor()}) {
      expect_same([&](Results& run) {
        const Tensor there = mask.defined() ? mask.to(run.device) : mask;
        const LandmarkCut cut = cut_landmarks(there, B, T, 4, padding, run.dtype, run.device);
        const Variable x =
            run.leaf(mask.defined() ? p.x : test::random_tensor({B, T, H, K}, "others"));
        run.add({landmark_means(x, cut)}, {x});
        for (const Tensor& each : {cut.owner, cut.shares, cut.used}) {
          run.out.push_back(each.to(Device{}));
        }
      });
    }
  }
}

TEST(CudaRowKernel, IsThatOfTheCpu) {
  Tensor rows = test::random_tensor({3, 5, K}, "rows");
  std::copy_n(rows.data<double>(), K, rows.data<double>() + 2 * K);  // drawn twice
  expect_same([&](Results& run) {
    const Variable x = run.leaf(rows);
    run.add({row_kernel(x)}, {x});
  });
}

TEST(CudaSampledRows, AreThoseOfTheCpu) {
  const Problem p;
  const Tensor draws = Tensor::from(
      std::vector<double>{0, 0.3, 0.3, 0.99, 0.5, 0.7, 0.1, 0.999, 0.4, 0.4, 0.4, 0}, {B, 6});
  for (const bool shared : {false, true}) {
    expect_same([&](Results& run) {
      const Tensor used = (shared ? draws.rows(0, 1) : draws).to(run.device);
      const Tensor tokens = sampled_tokens(used, p.mask.to(run.device), B, T);
      const Variable q = run.leaf(p.x), k = run.leaf(p.x);
      run.add({sampled_rows(q, k, tokens)}, {q, k});
      run.out.push_back(tokens.to(Device{}));
      // No valid token in any row.
      const Tensor none = Tensor::zeros({B, T}, DType::u8, run.device);
      run.out.push_back(sampled_tokens(used, none, B, T).to(Device{}));
      EXPECT_EQ(run.out.back().to_vector<int32_t>(), std::vector<int32_t>(B * 6, -1));
    });
  }
}

TEST(CudaSampledRows, DrawsAreThoseOfTheCpuInTheStepThatTheDeviceHolds) {
  const RandomKey key{5, 9, 17};
  RandomKey other = key;
  other.step = 4;
  const Tensor step = Tensor::from(std::vector<int64_t>{9}, {1}, test::kGpu);
  other.device_step = static_cast<const uint64_t*>(step.raw());
  const Tensor examples = Tensor::from(std::vector<int64_t>{12, 3}, {B});
  const Tensor got = uniform_draws(other, examples.to(test::kGpu), B, 6, test::kGpu);
  EXPECT_TRUE(test::same_bits(got.to(Device{}), uniform_draws(key, examples, B, 6, Device{})));
  EXPECT_TRUE(test::same_bits(uniform_draws(other, {}, 1, 6, test::kGpu).to(Device{}),
                              uniform_draws(key, {}, 1, 6, Device{})));
}

}  // namespace
}  // namespace linnet
