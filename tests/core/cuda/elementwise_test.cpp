// Element-wise operations and sums on the device are those of the CPU.
#include "core/elementwise.h"

#include <limits>

#include "core/cuda/backend.h"
#include "core/cuda/elementwise.h"
#include "core/gemm.h"
#include "tests/bf16_tolerance.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;

// Both devices round sums of f32 once, which another order of adding may bring to the neighbour in
// bf16: an ulp. In f32: sums of a few hundred terms.
double tolerance_of(const Tensor& expected) {
  return expected.dtype() == DType::bf16 ? 2 * test::half_ulp_of_bf16(expected) : 2e-6;
}

TEST(CudaElementwise, ConvertsEveryPairOfTypes) {
  const Tensor values = Tensor::from(std::vector<double>{0, 1, 2.5, 3, 100.25, 77}, {6});
  const std::vector<DType> types{DType::f32, DType::f64, DType::bf16,   DType::i32,
                                 DType::i64, DType::u8,  DType::boolean};
  for (const DType from : types) {
    const Tensor source = values.to(from);
    for (const DType to : types) {
      const Tensor expected = source.to(to);
      const Tensor got = source.to(kGpu).to(to);
      EXPECT_EQ(got.device(), kGpu);
      EXPECT_EQ(got.dtype(), to);
      EXPECT_EQ(got.to(DType::f64).to_vector<double>(), expected.to(DType::f64).to_vector<double>())
          << name_of(from) << " to " << name_of(to);
    }
  }
}

TEST(CudaElementwise, RoundsToBf16AsTheCpuDoes) {
  const Tensor x = random_tensor({1000}, "rounding", DType::f32);
  EXPECT_EQ(x.to(kGpu).to(DType::bf16).to_vector<float>(), x.to(DType::bf16).to_vector<float>());
}

TEST(CudaElementwise, AddsScalesAndSums) {
  // Rows that are read 16 bytes at a time, by two blocks, and those that are not.
  for (const auto& [dtype, width] : {std::pair<DType, int64_t>{DType::f32, 37},
                                     {DType::bf16, 37},
                                     {DType::f32, 264},
                                     {DType::bf16, 264}}) {
    SCOPED_TRACE(concat(name_of(dtype), ", ", width, " columns"));
    const Tensor a = random_tensor({300, width}, "a", dtype);
    const Tensor b = random_tensor({300, width}, "b", dtype);
    const Tensor row = random_tensor({width}, "row", dtype);
    const Tensor x = a.clone(), y = a.to(kGpu);
    add_into(x, b);
    add_into(y, b.to(kGpu));
    EXPECT_CLOSE(y, x, tolerance_of(x));
    scale_into(x, 0.3);
    scale_into(y, 0.3);
    EXPECT_CLOSE(y, x, tolerance_of(x));
    cuda::scale_into(y, Tensor::full({}, 2.0, DType::f64, kGpu));
    scale_into(x, 2.0);
    EXPECT_CLOSE(y, x, tolerance_of(x));
    add_row_into(x, row);
    add_row_into(y, row.to(kGpu));
    EXPECT_CLOSE(y, x, tolerance_of(x));
    const Tensor z = Tensor::empty(a.shape(), dtype, kGpu);
    add(y, y, z);
    scale_into(x, 2.0);
    EXPECT_CLOSE(z, x, tolerance_of(x));
    for (const bool accumulate : {false, true}) {
      const Tensor totals = Tensor::full({width}, 0.5), device_totals = totals.to(kGpu);
      sum_rows(x, totals, accumulate);
      sum_rows(z, device_totals, accumulate);
      EXPECT_CLOSE(device_totals, totals, tolerance_of(x));
    }
    // Arrays that do not begin on 16 bytes, and one that ends within them.
    const Shape part{75};
    const Tensor odd = a.slice(3, part).clone();
    add_into(odd, b.slice(1, part));
    const Tensor device = a.to(kGpu);
    add_into(device.slice(3, part), b.to(kGpu).slice(1, part));
    EXPECT_CLOSE(device.slice(3, part), odd, tolerance_of(odd));
    EXPECT_CLOSE(device.slice(78, part), a.slice(78, part), 0);
    EXPECT_NEAR(sum(z), sum(x), tolerance_of(x) * std::abs(sum(x)));
    EXPECT_NEAR(sum_of_squares(z), sum_of_squares(x), tolerance_of(x) * sum_of_squares(x));
  }
}

// A sum keeps its type, whatever that of what is added is.
TEST(CudaElementwise, AddsTheOtherType) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const DType other = dtype == DType::f32 ? DType::bf16 : DType::f32;
    for (const int64_t begin : {0, 3}) {
      const Tensor x = random_tensor({83}, "x", dtype), y = random_tensor({83}, "y", other);
      const Tensor sum = x.to(kGpu), part = sum.slice(begin, {80});
      add_into(part, y.to(kGpu).slice(begin, {80}));
      add_into(x.slice(begin, {80}), y.slice(begin, {80}));
      EXPECT_CLOSE(sum, x, tolerance_of(x));
    }
  }
}

TEST(CudaElementwise, SumsLargeTensorsTheSameEveryTime) {
  const Tensor x = random_tensor({40000}, "large", DType::f32).to(kGpu);
  const double once = sum(x);
  EXPECT_EQ(sum(x), once);
  EXPECT_NEAR(once, sum(x.to(Device{})), 1e-8 * 40000);
  EXPECT_EQ(sum(Tensor::zeros({0}, DType::f32, kGpu)), 0);
  EXPECT_TRUE(all_finite(x));
  x.slice(39999, {1}).fill(INFINITY);
  EXPECT_FALSE(all_finite(x));
}

TEST(CudaElementwise, MultipliesMatrices) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor a = random_tensor({5, 7, 9}, "a", dtype),
                 b = random_tensor({5, 11, 9}, "b", dtype);
    const Tensor expected = Tensor::empty({5, 7, 11}, dtype);
    const Tensor got = Tensor::empty({5, 7, 11}, dtype, kGpu);
    batched_gemm(a, Transpose::no, b, Transpose::yes, expected);
    batched_gemm(a.to(kGpu), Transpose::no, b.to(kGpu), Transpose::yes, got);
    EXPECT_CLOSE(got, expected, tolerance_of(expected));
    gemm(a, Transpose::no, b.rows(0, 1).reshape({11, 9}), Transpose::yes, expected, 1, 1);
    gemm(a.to(kGpu), Transpose::no, b.rows(0, 1).reshape({11, 9}).to(kGpu), Transpose::yes, got, 1,
         1);
    EXPECT_CLOSE(got, expected, tolerance_of(expected));
  }
}

TEST(CudaElementwise, ProductsAddABiasAndSumRows) {
  for (const auto& [dtype, c_dtype] :
       {std::pair{DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}}) {
    for (const int64_t tokens : {0, 1, 40}) {
      // 24 columns, aligned as a GPU's library likes it, and 5.
      for (const int64_t n : {24, 5}) {
        const Tensor x = random_tensor({tokens, 48}, "x", dtype),
                     w = random_tensor({n, 48}, "w", dtype);
        const Tensor bias = random_tensor({n}, "bias", c_dtype, 5);
        const Tensor expected = Tensor::empty({tokens, n}, c_dtype);
        const Tensor got = Tensor::empty({tokens, n}, c_dtype, kGpu);
        gemm_bias(x, Transpose::no, w, Transpose::yes, expected, bias);
        gemm_bias(x.to(kGpu), Transpose::no, w.to(kGpu), Transpose::yes, got, bias.to(kGpu));
        EXPECT_CLOSE(got, expected, tolerance_of(expected));
        const Tensor dy = random_tensor({tokens, n}, "dy", dtype);
        for (const bool accumulate : {false, true}) {
          const Tensor dw = random_tensor({n, 48}, "dw", c_dtype),
                       row = random_tensor({n}, "row", c_dtype);
          const Tensor got_dw = dw.to(kGpu), got_row = row.to(kGpu);
          gemm_row_sums(dy, x, dw, accumulate ? 1 : 0, row, accumulate);
          gemm_row_sums(dy.to(kGpu), x.to(kGpu), got_dw, accumulate ? 1 : 0, got_row, accumulate);
          EXPECT_CLOSE(got_dw, dw, tolerance_of(dw));
          EXPECT_CLOSE(got_row, row, tolerance_of(row));
        }
      }
    }
  }
}

TEST(CudaElementwise, ProductsTakeViewsThatAreHardlyAligned) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor all = random_tensor({300}, "all", dtype), a = all.slice(1, {7, 9}),
                 b = all.slice(101, {9, 8});
    const Tensor device = all.to(kGpu), sums = Tensor::zeros({60}, dtype, kGpu);
    const Tensor expected = Tensor::empty({7, 8}, dtype), got = sums.slice(3, {7, 8});
    gemm(a, Transpose::no, b, Transpose::no, expected);
    gemm(device.slice(1, {7, 9}), Transpose::no, device.slice(101, {9, 8}), Transpose::no, got);
    EXPECT_CLOSE(got, expected, tolerance_of(expected));
  }
}

// Without terms a product is 0, whatever was in the memory that it is written to.
TEST(CudaElementwise, ProductsWithoutTermsClearWhatTheyDoNotKeep) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Device device : {Device{}, kGpu}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Tensor a = Tensor::empty({2, 3, 0}, dtype, device);
      const Tensor b = Tensor::empty({2, 4, 0}, dtype, device);
      const Tensor c = Tensor::full({2, 3, 4}, nan, dtype, device);
      batched_gemm(a, Transpose::no, b, Transpose::yes, c);
      EXPECT_EQ(c.to_vector<double>(), std::vector<double>(24)) << name_of(device);
      const Tensor one = Tensor::full({3, 4}, nan, dtype, device);
      const Tensor left = a.rows(0, 1).reshape({3, 0}), right = b.rows(0, 1).reshape({4, 0});
      gemm(left, Transpose::no, right, Transpose::yes, one);
      EXPECT_EQ(one.to_vector<double>(), std::vector<double>(12)) << name_of(device);
      const Tensor kept = Tensor::full({3, 4}, 2, dtype, device);
      gemm(left, Transpose::no, right, Transpose::yes, kept, 1, 1);
      EXPECT_EQ(kept.to_vector<double>(), std::vector<double>(12, 2)) << name_of(device);
    }
  }
}

// More than the 65535 that a GPU's library takes in a call.
TEST(CudaElementwise, ManyProductsAtOnce) {
  const int64_t count = 65535 + 3;
  const Tensor a = random_tensor({count, 1, 2}, "a", DType::f32);
  const Tensor b = random_tensor({count, 2, 1}, "b", DType::f32);
  const Tensor got = Tensor::empty({count, 1, 1}, DType::f32, kGpu);
  batched_gemm(a.to(kGpu), Transpose::no, b.to(kGpu), Transpose::no, got);
  const std::vector<float> x = a.to_vector<float>(), y = b.to_vector<float>();
  std::vector<float> expected;
  for (size_t i = 0; i < x.size(); i += 2) expected.push_back(x[i] * y[i] + x[i + 1] * y[i + 1]);
  EXPECT_CLOSE(got, Tensor::from(expected, {count, 1, 1}), 2e-6);
}

TEST(CudaTensor, HostCodeCannotReachDeviceMemory) {
  const Tensor x = Tensor::zeros({3}, DType::f32, kGpu);
  EXPECT_THROW(x.data<float>(), Error);
  EXPECT_THROW(gemm(x.reshape({1, 3}), Transpose::no, Tensor::zeros({3, 1}), Transpose::no,
                    Tensor::zeros({1, 1}, DType::f32, kGpu)),
               Error);
}

// A GPU copies such ranges in any order; the emulation refuses what it would let pass unnoticed.
TEST(CudaTensor, CopiesDoNotOverlap) {
  if (kCudaBackend != CudaBackend::emulated) GTEST_SKIP() << "undefined on a GPU";
  const Tensor x = Tensor::zeros({8}, DType::f32, kGpu);
  EXPECT_THROW(x.slice(0, {4}).copy_from(x.slice(1, {4})), Error);
  EXPECT_THROW(x.slice(1, {4}).copy_from(x.slice(0, {4})), Error);
  x.slice(0, {4}).copy_from(x.slice(4, {4}));
}

TEST(CudaTensor, FillsEveryType) {
  for (const DType dtype :
       {DType::f32, DType::f64, DType::bf16, DType::i32, DType::i64, DType::u8, DType::boolean}) {
    const Tensor x = Tensor::full({300}, 3.25, dtype, kGpu);
    EXPECT_EQ(x.to_vector<double>(), Tensor::full({300}, 3.25, dtype).to_vector<double>())
        << name_of(dtype);
  }
  EXPECT_THROW(Tensor::full({1}, 300, DType::u8, kGpu), Error);
}

TEST(CudaTensor, UninitializedMemoryIsNan) {
  const Tensor x = Tensor::empty({5}, DType::bf16, kGpu);
  for (const float value : x.to_vector<float>()) EXPECT_TRUE(std::isnan(value));
}

TEST(CudaTensor, SaysWhoHoldsTheMemoryWhenNoneIsLeft) {
  const MemoryUser user("a test");
  // More than products hold, whose tests may have run in this process.
  const Tensor held = Tensor::zeros({16 << 20}, DType::f32, kGpu);
  EXPECT_GE(allocated_bytes(kGpu), held.bytes());
  try {
    Tensor::empty({int64_t{1} << 40}, DType::f32, kGpu);
    FAIL() << "4 TiB were allocated";
  } catch (const OutOfMemory& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("4194304 MiB requested by a test"), std::string::npos) << text;
    EXPECT_NE(text.find("the largest users are a test (64 MiB)"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace linnet
