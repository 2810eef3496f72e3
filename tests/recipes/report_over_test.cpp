// The chart of runs against a number of their recipes.
#include "recipes/engine/report_over.h"

#include <gmock/gmock.h>

#include <cmath>

#include "recipes/engine/report.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

RunData scored_run(const std::string& attention, int pairs, double nll, const char* accuracy) {
  RunData run;
  run.path = run.name = concat(attention, pairs);
  run.recipe = concat("{model: {attention: ", attention, "}, data: {pairs: ", pairs, "}}");
  EvaluationCurves curves;
  curves.split = "validation";
  curves.nll = {{1, nll}, {2, nll}, {3, nll}};
  curves.perplexity = {{1, nll + 1}, {2, nll}, {3, std::nan("")}};
  if (accuracy != nullptr) curves.accuracy = {{1, std::stod(accuracy)}, {2, 0.125}};
  run.evaluations = {curves};
  return run;
}

TEST(ReportOver, BestFiguresStandAtANumberOfTheRecipes) {
  std::vector<RunData> runs = {scored_run("{name: lavo}", 16, 3, "0.5"),
                               scored_run("{name: lavo}", 4, 2, "0.75"),
                               scored_run("{name: local, window: 2}", 4, 5, "0.25"),
                               scored_run("{name: local, window: 8}", 4, 4, nullptr)};
  const auto points = [](const ChartSeries& series) {
    std::vector<std::pair<double, double>> pairs;
    for (const MetricPoint& point : series.points) pairs.emplace_back(point.step, point.value);
    return pairs;
  };
  const Chart chart = chart_over(runs, "data.pairs");
  ASSERT_EQ(chart.series.size(), 3U);
  EXPECT_EQ(chart.series[0].name, "lavo");
  EXPECT_THAT(points(chart.series[0]), ElementsAre(std::pair(4, 0.75), std::pair(16, 0.5)));
  EXPECT_EQ(chart.series[1].name, "{name: local, window: 2}");
  EXPECT_THAT(points(chart.series[1]), ElementsAre(std::pair(4, 0.25)));
  EXPECT_THAT(points(chart.series[2]), IsEmpty());
  const std::string html = report_html(runs, "data.pairs");
  EXPECT_THAT(html, HasSubstr("Best accuracy against data.pairs"));
  EXPECT_THAT(html, HasSubstr(">data.pairs</text>"));
  EXPECT_THAT(report_html(runs), Not(HasSubstr("against data.pairs")));
  for (RunData& run : runs) run.evaluations[0].accuracy.clear();
  const Chart perplexity = chart_over(runs, "data.pairs");
  EXPECT_EQ(perplexity.y_label, "perplexity");
  EXPECT_THAT(points(perplexity.series[0]), ElementsAre(std::pair(4, 2), std::pair(16, 3)));
}

TEST(ReportOver, RunsWithoutTheNumberAreNamed) {
  std::vector<RunData> runs = {scored_run("{name: lavo}", 4, 2, nullptr)};
  for (const char* key : {"data.pear", "data", "model.attention", "data.pairs.more", ""}) {
    EXPECT_EQ(test::causes_of<UsageError>([&] { chart_over(runs, key); }),
              "not_found --over at {name: lavo}4")
        << key;
  }
  runs[0].recipe = "[broken";
  EXPECT_EQ(test::causes_of<UsageError>([&] { chart_over(runs, "data.pairs"); }),
            "not_found --over at {name: lavo}4");
}

}  // namespace
}  // namespace linnet
