// The spans of packed rows are found on the device as on the host.
#include "attention/primitives/common/cuda/token_spans.h"

#include "core/sequence_view.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

TEST(CudaTokenSpans, AreThoseOfTheHost) {
  const int64_t B = 3;
  for (const int64_t T : {0, 1, 2, 31, 32, 33, 100}) {
    for (const uint64_t changes : {0, 1, 7, 40}) {  // of 40 tokens begin a document
      std::vector<int32_t> segments;
      for (int64_t i = 0; i < B * T; ++i) {
        const bool changed = RandomKey{9, changes, 0}.below(static_cast<uint64_t>(i), 40) < changes;
        segments.push_back((segments.empty() ? 0 : segments.back()) + (changed ? 1 : 0));
      }
      std::vector<int32_t> expected(static_cast<size_t>(2 * B * T));
      for (const Span& span : make_spans(segments.data(), B, T, false)) {
        for (int64_t t = span.begin; t < span.end; ++t) {
          expected[static_cast<size_t>(span.row * T + t)] = static_cast<int32_t>(span.begin);
          expected[static_cast<size_t>((B + span.row) * T + t)] = static_cast<int32_t>(span.end);
        }
      }
      const Tensor found = cuda::token_spans(Tensor::from(segments, {B, T}, test::kGpu));
      EXPECT_EQ(found.shape(), Shape({2, B, T}));
      EXPECT_EQ(found.to_vector<int32_t>(), expected) << T << " tokens, " << changes;
    }
  }
}

}  // namespace
}  // namespace linnet
