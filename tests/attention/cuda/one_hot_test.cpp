// Positions as vectors on the CUDA device: those of the CPU.
#include "attention/synthesizer/one_hot.h"

#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

TEST(CudaOneHot, RowsAreThoseOfTheCpu) {
  const Tensor positions = test::ids({0, 4, 2, 3, 1, 9}, {2, 3});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Tensor expected = one_hot_positions(positions, 2, 5, dtype);
    EXPECT_TRUE(test::same_bits(
        one_hot_positions(positions.to(test::kGpu), 2, 5, dtype).to(Device{}), expected));
    EXPECT_EQ(expected.to(DType::f64).data<double>()[(1 * 2 + 1) * 5 + 4], 1);
    double total = 0;
    for (const double x : expected.to_vector<double>()) total += x;
    EXPECT_EQ(total, 10);  // the last position has no channel
  }
}

}  // namespace
}  // namespace linnet
