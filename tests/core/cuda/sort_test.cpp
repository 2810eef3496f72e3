// Sorting on the device: CUB's where CUDA is on, the CPU's where it is emulated.
#include "tests/core/sort_cases.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

TEST(CudaSort, RowsAreSortedStably) {
  test::expect_sorts(test::kGpu);
}

TEST(CudaSort, SpecialValuesHaveTheirPlace) {
  test::expect_special_values_sort(test::kGpu);
}

}  // namespace
}  // namespace linnet
