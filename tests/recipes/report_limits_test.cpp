// Metrics of a hostile or damaged run: what a report reads of them is bounded.
#include <gtest/gtest.h>

#include "core/files.h"
#include "recipes/engine/report_data.h"
#include "tests/file_failures.h"

namespace linnet {
namespace {

TEST(ReportLimits, KindsOfEvaluationAreAtMostAThousand) {
  const test::ScratchDirectory run;
  std::string lines;
  for (int context = 1; context <= 5000; ++context) {
    lines += concat(R"({"step": 1, "split": "test", "context": )", context, R"(, "nll": 1})", '\n');
  }
  write_file(run / "metrics.jsonl", lines);
  EXPECT_EQ(read_run(run.path()).evaluations.size(), 1000u);
}

TEST(ReportLimits, TextsOfEvaluationsAreComparedWithoutMakingThem) {
  std::vector<ScoredText> all;
  for (const int64_t length : {0, 64, 128}) {
    for (const int64_t stride : {-1, 0, 32, 64, 128}) {
      for (const bool streaming : {false, true}) all.push_back({length, stride, streaming});
    }
  }
  for (const ScoredText& a : all) {
    for (const ScoredText& b : all) {
      EXPECT_EQ(a.reads_as(b), a.text() == b.text())
          << a.length << " " << a.stride << " " << a.streaming << " and " << b.length << " "
          << b.stride << " " << b.streaming;
    }
  }
}

}  // namespace
}  // namespace linnet
