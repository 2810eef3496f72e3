// The report's formulas, on the published numbers themselves.
#include "recipes/engine/report_formulas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace linnet {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Optional;

std::optional<double> printed(const PublishedRow& row) {
  return row.value;
}

std::string name_of(const PublishedRow& row) {
  return concat(row.paper, ' ', row.table, ' ', row.task, ' ', row.model);
}

TEST(ReportFormulas, MeanAndSampleDeviation) {
  EXPECT_EQ(mean_of({}), std::nullopt);
  EXPECT_EQ(mean_of({1, 2, 6}), 3);
  EXPECT_EQ(sample_deviation({5}), std::nullopt);
  EXPECT_THAT(sample_deviation({1, 2, 6}), Optional(DoubleNear(std::sqrt(7.0), 1e-12)));
}

// Papers average figures before they round them: half a digit of the tasks' figures and half a
// digit of the average, 0.01 together, which are printed with two digits.
TEST(ReportFormulas, AveragesOverTasksComeOutAsPrinted) {
  // The papers' own mistakes: by how much the printed average differs from the printed tasks.
  const std::map<std::string, double> mistakes = {
      {"leapformer T8 lra_avg cosformer (1.05x Parameters)", 0.398},
      {"linearized_llm T16 glue_avg Linformer", -1.157},
      {"survey T4 glue_avg TransNormer", 0.678}};
  std::map<std::string, size_t> averages;
  size_t found = 0;
  for (const PublishedRow& row : published_rows()) {
    if (row.from != "mean_of_tasks") continue;
    const size_t tasks = formula_inputs(row).size();
    EXPECT_EQ(tasks, row.task == "lra_avg"           ? 5u
                     : row.paper == "linearized_llm" ? 7u
                                                     : 4u)
        << name_of(row);
    const std::optional<double> mean = formula_figure(row, printed);
    ASSERT_TRUE(mean && row.value) << name_of(row);
    const auto mistake = mistakes.find(name_of(row));
    const double difference = mistake == mistakes.end() ? 0 : mistake->second;
    found += mistake == mistakes.end() ? 0 : 1;
    const double rounding = row.paper == "abc" ? 0.1 : 0.01;  // one digit there
    EXPECT_NEAR(*row.value - *mean, difference, rounding + 1e-9) << name_of(row);
    ++averages[row.paper];
  }
  EXPECT_EQ(found, mistakes.size());
  EXPECT_THAT(averages,
              ElementsAre(std::pair("abc", 5), std::pair("lavo", 10), std::pair("leapformer", 13),
                          std::pair("linearized_llm", 38), std::pair("survey", 39)));
}

TEST(ReportFormulas, MeansOverModelsComeOutAsPrinted) {
  int found = 0;
  for (const PublishedRow& row : published_rows()) {
    if (row.from != "mean_of_models") continue;
    EXPECT_EQ(formula_inputs(row).size(), 7u) << name_of(row);
    EXPECT_THAT(formula_figure(row, printed), Optional(DoubleNear(*row.value, 0.01)))
        << name_of(row) << ' ' << row.setting;
    ++found;
  }
  EXPECT_EQ(found, 3);
}

TEST(ReportFormulas, TenCompositePerformancesComeOutAsPrinted) {
  int found = 0;
  std::vector<double> averages;
  for (const PublishedRow& row : published_rows()) {
    if (row.paper == "leapformer" && row.table == "T1" && row.task == "lra_avg")
      averages.push_back(*row.value);
    if (row.from != "rcp") continue;
    EXPECT_THAT(formula_figure(row, printed), Optional(DoubleNear(*row.value, 0.01)))
        << name_of(row);
    ++found;
  }
  EXPECT_EQ(found, 10);
  EXPECT_EQ(averages.size(), 11u);
  EXPECT_THAT(sample_deviation(averages), Optional(DoubleNear(1.48257, 5e-6)));
}

// Its inputs stand in a figure alone: nothing without measured memory.
TEST(ReportFormulas, CompositeWithMemoryNeedsMeasuredMemory) {
  int found = 0;
  for (const PublishedRow& row : published_rows()) {
    if (row.from != "rcp_mem" || row.table != "T3") continue;
    EXPECT_EQ(formula_figure(row, printed), std::nullopt) << name_of(row);
    const auto as_softmax = [](const PublishedRow&) { return std::optional<double>(3); };
    const auto half = [](const PublishedRow& input) {
      return std::optional<double>(input.model == "Softmax Attn." ? 6 : 3);
    };
    const double speed = *formula_inputs(row)[0]->value / *formula_inputs(row)[1]->value;
    const double same = *formula_figure(row, printed, as_softmax);
    EXPECT_NEAR(*formula_figure(row, printed, half) / same, (speed + 2) / (speed + 1), 1e-12);
    ++found;
  }
  EXPECT_EQ(found, 10);
}

TEST(ReportFormulas, NoCompositePerformanceADeviationAboveSoftmax) {
  const CompositeInput above{10, 61, 2, 59, 1.5};
  EXPECT_EQ(composite_performance(above), std::nullopt);
  const CompositeInput input{10, 59, 2, 59, 1.5};
  EXPECT_THAT(composite_performance(input), Optional(5.0));
  EXPECT_THAT(composite_performance(input, 3), Optional(4.0));
}

TEST(ReportFormulas, AMissingInputGivesNothing) {
  for (const PublishedRow& row : published_rows()) {
    const auto inputs = formula_inputs(row);
    if (inputs.empty()) continue;
    const auto without_last = [&](const PublishedRow& input) {
      return &input == inputs.back() ? std::nullopt : input.value;
    };
    EXPECT_EQ(formula_figure(row, without_last), std::nullopt) << name_of(row);
  }
}

}  // namespace
}  // namespace linnet
