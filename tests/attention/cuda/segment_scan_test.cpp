// Scans along time, and the division that follows one, on the device as on the CPU.
#include "attention/common/segment_scan.h"

#include "attention/common/product_division.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;

Tensor mask_of(int64_t rows, int64_t time) {
  std::vector<uint8_t> mask;
  for (int64_t i = 0; i < rows * time; ++i) mask.push_back(i % 5 == 2 ? 0 : 1);
  return Tensor::from(mask, {rows, time});
}

// x as the device will see it; masked tokens hold NaN.
Tensor spoiled(const Shape& shape, const char* name, const Tensor& mask) {
  const Tensor x = random_tensor(shape, name).to(DType::f32).to(DType::f64);
  const int64_t width = x.elements() / mask.elements();
  for (int64_t i = 0; i < x.elements(); ++i) {
    if (mask.data<uint8_t>()[i / width] == 0) x.data<double>()[i] = NAN;
  }
  return x;
}

constexpr int64_t kRows = 3, kChannels = 5;

// Every kind and reach, as the CPU computes it in double; segments of so many tokens.
void expect_scans(int64_t time, int64_t segment, double tolerance) {
  const Tensor mask = mask_of(kRows, time);
  const Tensor x = spoiled({kRows, time, kChannels}, "x", mask);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < kRows * time; ++i) ids.push_back(static_cast<int32_t>(i / segment));
  for (const ScanKind kind : {ScanKind::sum, ScanKind::max}) {
    for (const ScanReach reach : {ScanReach::prefix, ScanReach::suffix, ScanReach::whole}) {
      SCOPED_TRACE(
          concat(time, " tokens, segments of ", segment, ", reach ", static_cast<int>(reach)));
      SegmentScan here;
      here.kind = kind;
      here.reach = reach;
      here.mask = mask;
      here.result_mask = mask;
      here.segments = Tensor::from(ids, {kRows, time});
      SegmentScan there = here;
      for (Tensor* tensor : {&there.mask, &there.result_mask, &there.segments}) {
        *tensor = tensor->to(kGpu);
      }
      if (reach != ScanReach::whole) {
        here.carried = random_tensor({kRows, kChannels}, "carried").to(DType::f32).to(DType::f64);
        there.carried = here.carried.to(DType::f32).to(kGpu);
        here.last = Tensor::empty({kRows, kChannels}, DType::f64);
        there.last = Tensor::empty({kRows, kChannels}, DType::f32, kGpu);
      }
      const Tensor expected = segment_scan(x, here);
      const Tensor got = segment_scan(x.to(DType::f32).to(kGpu), there);
      EXPECT_EQ(got.device(), kGpu);
      EXPECT_CLOSE(got, expected, tolerance);
      if (here.last.defined()) EXPECT_CLOSE(there.last, here.last, tolerance);
    }
  }
}

TEST(CudaSegmentScan, GivesWhatTheCpuGives) {
  expect_scans(19, 7, 1e-6);
}

// Longer rows are cut into parts: segments that begin inside them, at their edges, and that span
// several. Ten times as many values are added, in f32.
TEST(CudaSegmentScan, GoesOnThroughParts) {
  for (const int64_t segment : {1, 11, 32, 64, 70, 1000}) expect_scans(200, segment, 2e-6);
  expect_scans(65, 33, 2e-6);
}

// Every token of a segment has one total, in whichever part it is.
TEST(CudaSegmentScan, HasOneTotalForASegment) {
  constexpr int64_t kTime = 500;
  SegmentScan scan;
  scan.reach = ScanReach::whole;
  std::vector<int32_t> ids(kTime, 1);
  std::fill(ids.begin(), ids.begin() + 213, 0);
  scan.segments = Tensor::from(ids, {1, kTime}).to(kGpu);
  const Tensor x = random_tensor({1, kTime, 1}, "x", DType::f32).to(kGpu);
  const std::vector<float> totals = segment_scan(x, scan).to_vector<float>();
  for (size_t t = 0; t < totals.size(); ++t) EXPECT_EQ(totals[t], totals[t < 213 ? 0 : 213]) << t;
}

TEST(CudaDivisionByProducts, GivesWhatTheCpuGives) {
  const Tensor mask = mask_of(2, 6);
  const std::vector<Tensor> in{spoiled({2, 6, 2, 37}, "n", mask), spoiled({2, 6, 2, 5}, "q", mask),
                               spoiled({2, 6, 2, 5}, "z", mask)};
  for (const Normalizer normalizer : {Normalizer::clamp, Normalizer::add}) {
    const auto run = [&](DType dtype, Device device) {
      std::vector<Variable> variables;
      for (const Tensor& x : in) variables.emplace_back(x.to(dtype).to(device), true);
      const Variable y =
          divide_by_products(variables[0], variables[1], variables[2], normalizer,
                             normalizer == Normalizer::add ? 9 : 0.5, mask.to(device));
      backward({y}, {random_tensor(y.shape(), "dy", DType::f32).to(dtype).to(device)});
      std::vector<Tensor> found{y.value()};
      for (const Variable& variable : variables) found.push_back(variable.grad());
      return found;
    };
    const auto expected = run(DType::f64, Device{}), got = run(DType::f32, kGpu);
    for (size_t i = 0; i < got.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(got[i].device(), kGpu);
      EXPECT_CLOSE(got[i], expected[i], 1e-5);
    }
  }
}

}  // namespace
}  // namespace linnet
