// How products are asked for, without a GPU.
#include <gtest/gtest.h>

#include "core/cuda/backend.h"
#include "core/cuda/gemm.h"

namespace linnet {
namespace {

TEST(GemmChoice, SumsStayInFloat) {
  if constexpr (kCudaBackend != CudaBackend::on) {
    GTEST_SKIP() << "an emulated GPU multiplies with the CPU's library";
  } else {
    EXPECT_TRUE(cuda::sums_stay_in_float());
  }
}

}  // namespace
}  // namespace linnet
