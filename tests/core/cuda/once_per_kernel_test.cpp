#include "core/cuda/once_per_kernel.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace linnet::cuda {
namespace {

TEST(CudaOncePerKernel, ForEachKernelAndDevice) {
  OncePerKernel once;
  const char kernels[2] = {};
  int done = 0;
  for (int launch = 0; launch < 3; ++launch) {
    for (const int device : {0, 1}) {
      for (const char& kernel : kernels) once.run(device, &kernel, [&] { ++done; });
    }
  }
  EXPECT_EQ(done, 4);
}

TEST(CudaOncePerKernel, AgainAfterAFailure) {
  OncePerKernel once;
  const char kernel = 0;
  int done = 0;
  EXPECT_THROW(once.run(0, &kernel, [] { throw Error("the driver refuses"); }), Error);
  for (int launch = 0; launch < 2; ++launch) once.run(0, &kernel, [&] { ++done; });
  EXPECT_EQ(done, 1);
}

}  // namespace
}  // namespace linnet::cuda
