// Running sums and maxima against their definition, and their gradients.
#include "attention/common/segment_scan.h"

#include <gtest/gtest.h>

#include <limits>

#include "autograd/grad_check.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using test::random_tensor;

constexpr int64_t kRows = 2, kTime = 7, kChannels = 3;
const std::vector<uint8_t> kMask = {1, 0, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 0, 0};
const std::vector<int32_t> kSegments = {3, 3, 3, 5, 5, 6, 6, 0, 0, 0, 0, 0, 0, 1};

// The result of one token: the tokens of its segment that its reach covers.
double expected(const Tensor& x, const SegmentScan& scan, int64_t b, int64_t t, int64_t c) {
  const bool sum = scan.kind == ScanKind::sum;
  const auto segment = [&](int64_t at) {
    return scan.segments.defined() ? scan.segments.data<int32_t>()[b * kTime + at] : 0;
  };
  const bool reverse = scan.reach == ScanReach::suffix;
  const bool at_edge = segment(t) == segment(reverse ? kTime - 1 : 0);
  double result = sum ? 0 : -std::numeric_limits<double>::infinity();
  if (scan.carried.defined() && at_edge) result = scan.carried.data<double>()[b * kChannels + c];
  for (int64_t j = 0; j < kTime; ++j) {
    const bool covered = scan.reach == ScanReach::whole || (reverse ? j >= t : j <= t);
    const bool valid = !scan.mask.defined() || scan.mask.data<uint8_t>()[b * kTime + j] != 0;
    if (!covered || !valid || segment(j) != segment(t)) continue;
    const double value = x.data<double>()[(b * kTime + j) * kChannels + c];
    result = sum ? result + value : std::max(result, value);
  }
  return result;
}

TEST(SegmentScan, GivesItsDefinition) {
  const Tensor x = random_tensor({kRows, kTime, kChannels}, "x");
  for (size_t i = 0; i < kMask.size(); ++i) {
    if (kMask[i] == 0) x.data<double>()[i * kChannels] = std::numeric_limits<double>::quiet_NaN();
  }
  for (const ScanKind kind : {ScanKind::sum, ScanKind::max}) {
    for (const ScanReach reach : {ScanReach::prefix, ScanReach::suffix, ScanReach::whole}) {
      for (const bool segmented : {false, true}) {
        SegmentScan scan;
        scan.kind = kind;
        scan.reach = reach;
        scan.mask = Tensor::from(kMask, {kRows, kTime});
        if (segmented) scan.segments = Tensor::from(kSegments, {kRows, kTime});
        if (reach != ScanReach::whole) {
          scan.carried = random_tensor({kRows, kChannels}, "carried");
          scan.last = Tensor::empty({kRows, kChannels}, DType::f64);
        }
        const Tensor found = segment_scan(x, scan);
        for (int64_t i = 0; i < found.elements(); ++i) {
          const int64_t b = i / (kTime * kChannels), t = i / kChannels % kTime, c = i % kChannels;
          const double value = expected(x, scan, b, t, c);
          // Nothing covered: both are infinite.
          const double got = found.data<double>()[i];
          EXPECT_TRUE(got == value || std::abs(got - value) <= 1e-14) << i << ": " << got;
          const bool last = t == (reach == ScanReach::suffix ? 0 : kTime - 1);
          if (!last || !scan.last.defined()) continue;
          EXPECT_EQ(scan.last.data<double>()[b * kChannels + c], found.data<double>()[i]);
        }
      }
    }
  }
}

TEST(SegmentScan, RowsWithoutTokensKeepWhatWasCarried) {
  SegmentScan scan;
  scan.kind = ScanKind::max;
  scan.carried = random_tensor({2, 3}, "carried");
  scan.last = Tensor::empty({2, 3}, DType::f64);
  segment_scan(Tensor::empty({2, 0, 3}, DType::f64), scan);
  EXPECT_TRUE(test::same_bits(scan.last, scan.carried));
}

TEST(SegmentScan, RefusesShapesThatDoNotFit) {
  SegmentScan scan;
  scan.mask = Tensor::full({2, 4}, 1, DType::u8);
  EXPECT_NE(test::message_of<Error>([&] {
              segment_scan(Tensor::zeros({2, 3, 1}, DType::f64), scan);
            }).find("expected mask [2, 3], got [2, 4]"),
            std::string::npos);
}

TEST(RunningSum, GradientsMatchFiniteDifferences) {
  const Tensor mask = Tensor::from(kMask, {kRows, kTime});
  const Tensor segments = Tensor::from(kSegments, {kRows, kTime});
  for (const Tensor& cut : {Tensor(), segments}) {
    const auto causal = [&](const std::vector<Variable>& in) {
      const RunningSum result = running_sum(in[0], in[1], mask, cut, true);
      return std::vector<Variable>{result.sums, result.last};
    };
    const auto whole = [&](const std::vector<Variable>& in) {
      return std::vector<Variable>{running_sum(in[0], {}, mask, cut, false).sums};
    };
    const Tensor x = random_tensor({kRows, kTime, kChannels}, "x");
    const auto first = grad_check(causal, {x, random_tensor({kRows, kChannels}, "carried")});
    EXPECT_TRUE(first.passed) << first.message;
    const auto second = grad_check(whole, {x});
    EXPECT_TRUE(second.passed) << second.message;
  }
}

}  // namespace
}  // namespace linnet
