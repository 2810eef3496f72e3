// Buckets of distances are made on the device, the same as on the host.
#include "attention/common/distance_ids.h"

#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

TEST(CudaDistanceIds, AreThoseOfTheCpu) {
  for (const bool causal : {true, false}) {
    const Tensor expected = distance_ids(-300, 601, causal, Device{}, 3);
    const Tensor got = distance_ids(-300, 601, causal, test::kGpu, 3);
    EXPECT_EQ(got.to_vector<int32_t>(), expected.to_vector<int32_t>());
    for (int64_t i = 0; i < 601; i += 50) {
      EXPECT_EQ(expected.data<int32_t>()[i], distance_bucket(i - 300, causal)) << i;
      EXPECT_EQ(expected.data<int32_t>()[2 * 601 + i], 64 + distance_bucket(i - 300, causal)) << i;
    }
  }
}

}  // namespace
}  // namespace linnet
