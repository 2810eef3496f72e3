// Dead rows are counted from what a device holds.
#include "layers/dead_rows.h"

#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

TEST(CudaDeadRows, AreCountedOnTheHost) {
  const Tensor y = Tensor::from(std::vector<float>{0, 0, 1, 0, 0, 0, 0, 0}, {1, 2, 2, 2});
  const Tensor mask = Tensor::from(std::vector<uint8_t>{1, 0}, {1, 2}, test::kGpu);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    DeadRowCount count;
    count.add_outputs(5, y.to(dtype).to(test::kGpu), Tensor());
    EXPECT_EQ(count.layers().at(5).rows, 4);
    EXPECT_EQ(count.layers().at(5).dead, 3);
    count.add_features(5, y.to(dtype).to(test::kGpu), 0.5, mask);
    EXPECT_EQ(count.layers().at(5).rows, 4);
    EXPECT_EQ(count.layers().at(5).dead, 4);
  }
}

}  // namespace
}  // namespace linnet
