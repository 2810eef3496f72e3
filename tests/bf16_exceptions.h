// Results in bf16 that may be further from the reference than tests/bf16_tolerance.h derives.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace linnet::test {

// `results`: their indices in the list that the test compares, 0 is y (of precisions_agree:
// outputs, then gradients). `bound`: the largest error, relative to the largest element. `reason`:
// what the kernel rounds to bf16 and the CPU's path, by which tolerances are derived, keeps in f32
// within an operation.
struct Bf16Exception {
  const char* test;
  std::vector<size_t> results;
  double bound;
  const char* reason;
};

inline const std::vector<Bf16Exception>& bf16_exceptions() {
  // primitives/linear_attention/README.md, "Numerics on tensor cores".
  constexpr auto kLinear = "features, weights inside a chunk and the copy of S are rounded";
  // The same, of D: the two terms of a query's gradient nearly cancel where a segment has begun.
  constexpr auto kDenominator = "D is the sum of rounded weights, dy . y is not made of them";
  // performer/README.md, rfa/README.md.
  constexpr auto kFeatures = "features of mechanisms are rounded for tensor cores";
  // primitives/slot_attention/README.md, "Numerics on tensor cores".
  constexpr auto kSlots = "weights and scores inside a chunk, p / c and dp / c are rounded";
  // The same.
  constexpr auto kGiven = "scores inside a chunk, p / d, dp / d and the copies of sums are rounded";
  // primitives/delta_attention/README.md, "Numerics on tensor cores".
  constexpr auto kDelta = "states, corrections, their gradients and weights are rounded";
  // primitives/orthogonal_memory/README.md.
  constexpr auto kMemory = "p * m and the gradients of projections are rounded";
  // The same; models in bf16 have a basis in bf16.
  constexpr auto kBasis = "the basis, f32 in this test, is rounded for tensor cores";
  // primitives/block_attention/README.md; in one pass of LAVO too.
  constexpr auto kStoredY = "y . dy takes y as it was stored, weights and ds are rounded";
  // Beyond kMaxTolerance, though not beyond three times plain arithmetic.
  constexpr auto kCancels = "gradients through a norm nearly cancel, plain arithmetic errs as much";
  constexpr auto kLayers = "roundings of several layers add up, plain arithmetic errs as much";
  static const std::vector<Bf16Exception> exceptions{
      {"CudaLinearAttentionFast.GivesWhatTheCpuComputesInDouble", {3}, 8e-3, kLinear},
      {"CudaLinearAttentionFast.SegmentsDoNotSeeEachOther", {3, 4, 7}, 1e-2, kLinear},
      {"CudaLinearAttentionFastDecay.GivesWhatTheCpuComputesInDouble", {3, 7}, 8e-3, kLinear},
      {"CudaLinearAttentionFastDecay.SegmentsDoNotSeeEachOther", {4}, 1e-2, kLinear},
      {"CudaLinearAttentionFastFeatures.ExtremeInputsStayFinite", {6}, 8e-3, kLinear},
      {"CudaLinearAttentionFastFeatures.ProportionsAtTheEnds", {3}, 8e-3, kLinear},
      {"CudaLinearAttentionFastFeatures.ReweightedCausal", {3, 7}, 8e-3, kLinear},
      {"CudaLinearAttentionFastFeatures.ReweightedWhereSegmentsBegin", {3}, 2.5e-2, kDenominator},
      {"CudaLinearAttentionFastWide.Reweighted", {4, 6}, 8e-3, kLinear},
      {"CudaRoundedFeatures.GiveWhatTheCpuComputesInDouble", {0, 3, 4}, 1e-2, kFeatures},
      {"CudaSlotAttentionFast.DocumentsSeeOnlyThemselves", {10}, 1e-2, kSlots},
      {"CudaSlotAttentionFast.DropsWhatTheCpuDrops", {4, 10}, 1e-2, kSlots},
      {"CudaSlotAttentionFast.FinishedMemoriesAreWrittenAndRead", {7}, 8e-3, kSlots},
      {"CudaSlotAttentionFast.GivesWhatTheCpuComputesInDouble", {5, 10}, 1e-2, kSlots},
      {"CudaSlotAttentionFast.ManySlots", {4, 5}, 8e-3, kSlots},
      {"CudaSlotAttentionFastLimits.GradientsOfLogitsSurviveKeysAndValuesWithAMean",
       {4, 5},
       1e-2,
       kSlots},
      {"CudaSlotAttentionFastLimits.LogitsMayRiseAndFallByAnyAmount", {10}, 8e-3, kSlots},
      {"CudaSlotAttentionFastLimits.PartsOfSlotsMayCountForNothing", {4, 5}, 1e-2, kSlots},
      {"CudaSlotAttentionGiven.DocumentsSeeOnlyThemselves", {0, 5}, 1e-2, kGiven},
      {"CudaSlotAttentionGiven.FinishedMemoriesAreWrittenAndRead", {4}, 1.5e-2, kGiven},
      {"CudaSlotAttentionGiven.GivesWhatTheCpuComputesInDouble", {0, 4}, 8e-3, kGiven},
      {"CudaSlotAttentionGiven.ManySlots", {4, 6}, 1e-2, kGiven},
      {"CudaSlotAttentionGiven.SplitsOfLongSequences", {4}, 1e-2, kGiven},
      {"CudaDeltaAttention.IsThatOfTheCpu", {5}, 1e-2, kDelta},
      {"CudaOrthogonalMemory.GivesWhatTheCpuComputesInDouble", {3, 4}, 8e-3, kBasis},
      {"CudaOrthogonalMemoryFast.GivesWhatTheCpuComputesInDouble", {4}, 8e-3, kMemory},
      {"CudaLavoPass.ExtremeInputsStayFinite", {7}, 1e-2, kStoredY},
      {"CudaLavoPass.WideHeadsGiveWhatPrimitivesComputeInDouble", {4}, 8e-3, kStoredY},
      {"CudaLavoPass.ZerosGiveWhatPrimitivesCompute", {3, 4, 7}, 1e-2, kStoredY},
      {"CudaStep.BlockAttention", {1, 2}, 8e-3, kStoredY},
      {"CudaNorms.ResidualSumsAgreeWithDouble", {3}, 5e-2, kCancels},
      {"CudaModel.DecoderWithDropoutRecomputationAndSwiglu", {1}, 1.5e-2, kLayers},
      {"CudaModel.DecoderPostNormUntiedLearnedPositions", {1}, 1.5e-2, kLayers},
      {"CudaModel.ClassifiersOfBothPoolings", {1}, 1.5e-2, kLayers},
      {"CudaModel.PostNormAfterTheEmbeddingWithAnOffsetOfPositions", {1}, 2e-2, kLayers},
      {"CudaModel.MaskedLanguageModel", {1}, 1.5e-2, kLayers},
      {"CudaModel.AnEncoderAndADecoderAsT5", {1}, 3e-2, kLayers},
  };
  return exceptions;
}

// The exception of result `index` of the running test; null: there is none.
inline const Bf16Exception* bf16_exception_of_test(size_t index) {
  const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
  const std::string running = std::string(info->test_suite_name()) + "." + info->name();
  for (const Bf16Exception& exception : bf16_exceptions()) {
    if (running != exception.test) continue;
    for (const size_t result : exception.results) {
      if (result == index) return &exception;
    }
  }
  return nullptr;
}

}  // namespace linnet::test
