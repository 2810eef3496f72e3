// Compared tables as text, HTML, JSON, CSV and LaTeX; charts of costs.
#include "recipes/engine/report_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/files.h"
#include "recipes/engine/report.h"
#include "recipes/engine/report_plots.h"
#include "tests/file_failures.h"
#include "tests/recipes/published_runs.h"

namespace linnet {
namespace {

using test::PublishedRun;
using test::ScratchDirectory;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class ReportExport : public testing::Test {
 protected:
  // Two models of LeaPformer's first table, one with two seeds.
  void SetUp() override {
    PublishedRun run;
    run.table = "leapformer T1";
    run.task = "lra_text";
    run.model = "cosFormer";
    for (const auto& [seed, accuracy] : {std::pair(1, 0.60), {2, 0.62}}) {
      run.seed = seed;
      run.accuracy = accuracy;
      run.write(scratch_ / concat("cosFormer,seed=", seed));
    }
    run.model = "Linear Attn.";
    run.log = "error   training diverged: 5 updates";
    run.write(scratch_ / "linear");
    runs_ = read_runs(find_runs(scratch_.path()));
    tables_ = compare(runs_);
  }
  // The line that begins so.
  static std::string line_of(const std::string& text, const std::string& begin) {
    size_t at = text.find("\n" + begin);
    if (at == std::string::npos) return "";
    return text.substr(at + 1, text.find('\n', at + 1) - at - 1);
  }

  ScratchDirectory scratch_;
  std::vector<RunData> runs_;
  std::vector<ComparedTable> tables_;
};

TEST_F(ReportExport, TextHasPaperMeasuredAndDifference) {
  const std::string text = comparison_text(tables_);
  EXPECT_THAT(text, StartsWith("leapformer T1: the paper's figures and these runs'\ntask "));
  EXPECT_THAT(text, AllOf(HasSubstr("61.00 ± 1.41"), HasSubstr("diverged"), HasSubstr("not run")));
  EXPECT_THAT(report_text(runs_), HasSubstr("\n\n" + text));
}

TEST_F(ReportExport, ThePageHasTheTable) {
  const std::string html = report_html(runs_);
  EXPECT_THAT(html, AllOf(HasSubstr("<h2>leapformer T1: the paper&#39;s figures and these "
                                    "runs&#39;</h2>"),
                          HasSubstr("<td>61.00 ± 1.41</td>"), HasSubstr("<td>diverged</td>")));
}

TEST_F(ReportExport, JsonHasEveryDigitAndTheRuns) {
  const JsonValue json = parse_json(report_json(runs_, tables_).dump(), "report");
  const JsonValue& table = json.at("tables").elements().at(0);
  EXPECT_EQ(table.at("name").text(), "leapformer T1");
  EXPECT_TRUE(table.at("published").boolean());
  int found = 0;
  for (const JsonValue& cell : table.at("cells").elements()) {
    if (cell.at("model").text() != "cosFormer" || cell.at("task").text() != "lra_text") continue;
    ++found;
    EXPECT_EQ(cell.at("metric").text(), "accuracy");
    EXPECT_DOUBLE_EQ(cell.at("measured").number(), 61);
    EXPECT_EQ(cell.at("n").integer(), 2);
    EXPECT_EQ(cell.at("by_seed").at("2").number(), 62);
    EXPECT_DOUBLE_EQ(cell.at("difference").number(), 61 - cell.at("paper").number());
    EXPECT_EQ(cell.at("rank").integer(), 1);
    EXPECT_EQ(cell.at("state").text(), "");
  }
  EXPECT_EQ(found, 1);
  const JsonValue& run = json.at("runs").elements().at(2);
  EXPECT_EQ(run.at("name").text(), "linear");
  EXPECT_EQ(run.at("end").text(), "diverged");
  EXPECT_EQ(run.at("parameters").integer(), 1'500'000);
  EXPECT_EQ(run.at("wall_seconds").number(), 60);
  EXPECT_EQ(run.at("peak_tensor_bytes").integer(), 2'000'000);
}

TEST_F(ReportExport, CsvHasALinePerCellAndFact) {
  const std::string csv = report_csv(runs_, tables_);
  EXPECT_THAT(csv, StartsWith("table,task,model,setting,metric,paper,"));
  EXPECT_THAT(csv, HasSubstr("\nruns,,linear,,parameters,,,,1500000,,1,diverged,,,,\n"));
  EXPECT_THAT(csv, HasSubstr("\nruns,,\"cosFormer,seed=1\",,parameters,"));
  const size_t commas = 15;
  const std::string line = line_of(csv, "leapformer T1,lra_text,cosFormer,");
  EXPECT_EQ(static_cast<size_t>(std::count(line.begin(), line.end(), ',')),
            commas + static_cast<size_t>(line.find('"') == std::string::npos ? 0 : 1))
      << line;
  EXPECT_THAT(line, HasSubstr(",61,1.414213562,2,,"));
}

TEST_F(ReportExport, LatexIsEscaped) {
  const std::string latex = report_latex(runs_, tables_);
  EXPECT_THAT(latex, HasSubstr("% leapformer T1\n\\begin{tabular}{"));
  EXPECT_THAT(latex, HasSubstr("lra\\_text & cosFormer & "));
  EXPECT_THAT(latex, HasSubstr("LeaPformer-1.5\\% & "));
  EXPECT_THAT(latex, HasSubstr("61.00 $\\pm$ 1.41"));
  EXPECT_THAT(latex, Not(HasSubstr("±")));
  EXPECT_THAT(latex, HasSubstr("% runs\n\\begin{tabular}{"));
}

TEST_F(ReportExport, AccuracyAgainstSpeedHasMemoryAsTheCircle) {
  const std::string html = cost_charts(runs_);
  EXPECT_THAT(html, HasSubstr("Accuracy against training speed, leapformer T1, lra_text; area: "
                              "peak memory"));
  EXPECT_THAT(html, HasSubstr("r=\"16\""));
  EXPECT_THAT(html, HasSubstr("cosFormer,seed=1 (2 MB)"));
  EXPECT_EQ(cost_charts({runs_[0]}), "");
}

TEST(ReportCharts, PerplexityAgainstContextNeedsSeveralContexts) {
  const ScratchDirectory scratch;
  PublishedRun run;
  run.perplexity = 20;
  run.write(scratch / "run");
  EXPECT_EQ(cost_charts(read_runs({scratch / "run"})), "");
  test::add_line(
      scratch / "run", "metrics.jsonl",
      R"({"kind": "evaluation", "step": 10, "split": "test", "context": 1024, "nll": 1, )"
      R"("perplexity": 18})");
  const std::string html = cost_charts(read_runs({scratch / "run"}));
  EXPECT_THAT(html, AllOf(HasSubstr("Perplexity against context"), HasSubstr("run: test")));
}

// Without several seeds it would repeat the table of evaluations.
TEST(ReportCharts, TablesOfOtherRunsAreShownForSeeds) {
  const ScratchDirectory scratch;
  PublishedRun run;
  for (const int64_t seed : {1, 2}) {
    run.seed = seed;
    run.accuracy = 0.5;
    run.write(scratch / concat("run,seed=", seed));
    write_file(scratch / concat("run,seed=", seed, "/recipe.yaml"),
               concat("name: small\nseed: ", seed, "\n"));
  }
  const std::vector<RunData> both = read_runs(find_runs(scratch.path()));
  EXPECT_THAT(comparison_text(compare(both)), StartsWith("small: means over seeds\n"));
  EXPECT_EQ(comparison_text(compare({both[0]})), "");
  EXPECT_EQ(report_json({both[0]}, compare({both[0]})).at("tables").size(), 1u);
}

}  // namespace
}  // namespace linnet
