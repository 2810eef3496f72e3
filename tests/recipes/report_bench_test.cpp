// Measurements of 'linnet bench model' in reports: what compares, and what stands in a paper's
// column.
#include "recipes/engine/report_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "core/files.h"
#include "recipes/engine/bench/model.h"
#include "recipes/engine/recipe.h"
#include "recipes/engine/report.h"
#include "recipes/engine/report_export.h"
#include "recipes/engine/report_formulas.h"
#include "recipes/engine/report_plots.h"
#include "tests/data_path.h"
#include "tests/error_helpers.h"
#include "tests/file_failures.h"
#include "tests/recipes/bench_lines.h"
#include "tests/recipes/published_runs.h"

namespace linnet {
namespace {

using test::bench_line;
using test::published_line;
using test::PublishedRun;
using test::ScratchDirectory;
using testing::AllOf;
using testing::DoubleNear;
using testing::HasSubstr;
using testing::Not;
using testing::Optional;
using testing::StartsWith;

using Lines = std::vector<ModelBenchLine>;

ModelBenchLine out_of_memory(ModelBenchLine line) {
  line.bench.batch = 0;
  line.bench.parameters = 0;
  line.bench.peak_bytes = 0;
  return line;
}

const ComparedCell& cell_of(const std::vector<ComparedTable>& tables, const std::string& table,
                            const std::string& model, const std::string& part,
                            const std::string& metric) {
  for (const ComparedTable& each : tables) {
    for (const ComparedCell& cell : each.cells) {
      if (each.name.starts_with(table) && cell.model == model && cell.metric == metric &&
          cell.setting.find(part) != std::string::npos)
        return cell;
    }
  }
  throw Error(concat("no cell ", table, ' ', model, ' ', part, ' ', metric));
}

Lines two_lengths() {
  return {bench_line("softmax", 256, 0.1, 4'000'000), bench_line("softmax", 512, 0.4, 10'000'000),
          bench_line("linear", 256, 0.1, 3'000'000), bench_line("linear", 512, 0.2, 5'000'000),
          out_of_memory(bench_line("linear", 4096, 1, 1))};
}

TEST(ReportBench, RatiosAreOfRowsAgainstSoftmaxAtTheSameLength) {
  Lines lines = two_lengths();
  lines[3].bench.batch = 4;
  for (ModelBenchLine& line : lines) line.batch_given.reset();
  const auto groups = bench_groups(lines);
  ASSERT_EQ(groups.size(), 1U);
  const BenchFigures linear = figures_of(lines[3], groups[0]);
  EXPECT_DOUBLE_EQ(linear.rate, 5);
  EXPECT_DOUBLE_EQ(linear.row_ms, 50);
  EXPECT_DOUBLE_EQ(linear.memory_mb, 5);
  EXPECT_DOUBLE_EQ(linear.row_mb, 1.25);
  EXPECT_THAT(linear.speedup, Optional(DoubleNear(4, 1e-12)));
  EXPECT_THAT(linear.memory_ratio, Optional(DoubleNear(0.25, 1e-12)));
  EXPECT_THAT(figures_of(lines[0], groups[0]).speedup, Optional(1.0));
  lines[1] = out_of_memory(lines[1]);
  EXPECT_EQ(figures_of(lines[3], bench_groups(lines)[0]).speedup, std::nullopt);
}

TEST(ReportBench, OtherConditionsAreATableOfTheirOwn) {
  const ModelBenchLine line = bench_line("linear", 256, 0.1, 1000);
  const auto groups_with = [&](const auto& change) {
    Lines lines{line, bench_line("softmax", 256, 0.1, 1000)};
    change(lines[1]);
    return bench_groups(lines).size();
  };
  EXPECT_EQ(groups_with([](ModelBenchLine&) {}), 1U);
  EXPECT_EQ(groups_with([](ModelBenchLine& other) { other.mode = BenchMode::inference; }), 2U);
  EXPECT_EQ(groups_with([](ModelBenchLine& other) { other.batch_given = 4; }), 2U);
  EXPECT_EQ(groups_with([](ModelBenchLine& other) { other.overrides = {"model.width=8"}; }), 2U);
  EXPECT_EQ(groups_with([](ModelBenchLine& other) { other.device_name = "Another"; }), 2U);
  EXPECT_EQ(groups_with([](ModelBenchLine& other) { other.threads = 2; }), 2U);
  EXPECT_EQ(groups_with([](ModelBenchLine& other) { other.memory_bytes = 9; }), 2U);
  EXPECT_EQ(groups_with([](ModelBenchLine& other) { other.vocabulary = 9; }), 2U);
  EXPECT_EQ(groups_with([](ModelBenchLine& other) { other.bench.precision = "bf16"; }), 2U);
  EXPECT_EQ(groups_with([](ModelBenchLine& other) { other.bench.recipe = "other"; }), 2U);
}

TEST(ReportBench, TheLastOfTwoMeasurementsCountsUnlessTheModelChanged) {
  Lines lines{bench_line("linear", 256, 0.1, 1000), bench_line("linear", 256, 0.2, 1000)};
  auto groups = bench_groups(lines);
  ASSERT_EQ(groups.at(0).lines.size(), 1U);
  EXPECT_EQ(groups[0].lines[0], &lines[1]);
  lines[1].bench.parameters = 101;
  lines[1].place = "t.jsonl:2";
  EXPECT_EQ(test::causes_of<UsageError>([&] { bench_groups(lines); }),
            "conflict parameters at t.jsonl:2");
}

TEST(ReportBench, TextAndExportsHaveTheTable) {
  const Lines lines = two_lengths();
  const std::string text = report_text({}, lines);
  EXPECT_THAT(text, StartsWith("swept: updates, batch 2, 256 words, f32, on Some Processor, 1 "
                               "thread\nmodel "));
  EXPECT_THAT(text, AllOf(HasSubstr("speed-up"), HasSubstr("out of memory"),
                          HasSubstr("Measured on 2026-01-31, commit abc.")));
  const auto tables = compare({}, lines);
  ASSERT_EQ(tables.size(), 1U);
  EXPECT_FALSE(tables[0].published);
  EXPECT_EQ(cell_of(tables, "swept", "linear", "seq_len=512", "speedup_x").mean, 2);
  EXPECT_EQ(cell_of(tables, "swept", "linear", "seq_len=512", "ms_per_row").mean, 100);
  EXPECT_EQ(cell_of(tables, "swept", "linear", "seq_len=4096", "itr_per_s").state(),
            "out of memory");
  EXPECT_EQ(cell_of(tables, "swept", "linear", "seq_len=512", "mem_mb").ranks.measured, 1);
  const JsonValue json = report_json({}, tables);
  EXPECT_EQ(json.at("tables").elements().at(0).at("note").text(), tables[0].note);
  EXPECT_THAT(report_csv({}, tables), HasSubstr(",linear,seq_len=512,speedup_x,,,,2,,1,,"));
  EXPECT_THAT(report_latex({}, tables),
              AllOf(HasSubstr("% Measured on"), HasSubstr("linear & 512 & 2 & 5 & 100 & 2 & 5 MB"),
                    Not(HasSubstr("% runs"))));
}

TEST(ReportBench, ChartsOfTimeAndMemoryNeedTwoLengths) {
  const Lines lines = two_lengths();
  const std::string html = report_html({}, "", lines);
  EXPECT_THAT(html, AllOf(HasSubstr("<h1>speed and memory</h1>"),
                          HasSubstr("Time of a row against its length; swept: updates"),
                          HasSubstr("Memory of a row against its length"),
                          HasSubstr("<td>out of memory</td>"), HasSubstr("</html>")));
  // On a logarithmic axis 512 lies in the middle of 256 and 1,024.
  Lines three = {bench_line("softmax", 256, 0.1, 1), bench_line("softmax", 512, 0.1, 1),
                 bench_line("softmax", 1024, 0.1, 1)};
  EXPECT_THAT(bench_charts(bench_groups(three)), HasSubstr("cx=\"344.0\""));
  EXPECT_EQ(bench_charts(bench_groups({three[0]})), "");
}

TEST(ReportBench, FiguresStandInThePapersColumnOnItsDeviceAlone) {
  const auto lines_on = [](const char* device) {
    Lines lines{published_line("abc T6", "text_encoding_efficiency", "BASE", 512, 0.3, 200),
                published_line("abc T6", "text_encoding_efficiency", "ABC_MLP", 512, 0.2, 120)};
    lines[0].bench.attention = "softmax";
    lines[1].bench.published->setting = "n=64";
    for (ModelBenchLine& line : lines) line.device_name = device;
    return lines;
  };
  const auto same = compare({}, lines_on("Tesla V100-SXM2-16GB"));
  ASSERT_EQ(same.size(), 2U);
  EXPECT_TRUE(same[0].published);
  EXPECT_THAT(cell_of(same, "abc T6", "ABC_MLP", "n=64", "speedup_x").mean,
              Optional(DoubleNear(1.5, 1e-12)));
  EXPECT_THAT(cell_of(same, "abc T6", "ABC_MLP", "n=64", "mem_ratio_x").difference(),
              Optional(DoubleNear(0.1, 1e-12)));
  EXPECT_EQ(cell_of(same, "abc T6", "ABC_MLP", "n=128", "speedup_x").state(), "not run");
  const auto other = compare({}, lines_on("NVIDIA H200"));
  EXPECT_EQ(cell_of(other, "abc T6", "ABC_MLP", "n=64", "speedup_x").state(), "other device");
  EXPECT_EQ(cell_of(other, "abc T6", "ABC_MLP", "n=64", "speedup_x").mean, std::nullopt);
  EXPECT_THAT(cell_of(other, "swept", "ABC_MLP", "512", "speedup_x").mean,
              Optional(DoubleNear(1.5, 1e-12)));
  Lines smaller = lines_on("Tesla V100-SXM2-16GB");
  for (ModelBenchLine& line : smaller) line.vocabulary = 1000;
  const auto sizes = compare({}, smaller);
  EXPECT_EQ(cell_of(sizes, "abc T6", "ABC_MLP", "n=64", "speedup_x").state(), "other sizes");
  Lines changed = lines_on("Tesla V100-SXM2-16GB");
  changed[1].overrides = {"published.setting=n=64", "model.width=64"};
  EXPECT_EQ(departure_of(changed[1], *rows_of(*changed[1].bench.published).front()), "other sizes");
  // Two V100 of the paper are never one device.
  const ModelBenchLine one =
      published_line("leapformer T2", "lra_throughput", "cosFormer", 1024, 0.1, 100);
  EXPECT_EQ(departure_of(one, *rows_of(*one.bench.published).front()), "other device");
}

TEST(ReportBench, MemoryThatEndsIsAStateAsInThePaper) {
  ModelBenchLine line =
      published_line("survey Fig4", "encoder_efficiency", "Full", 32768, 0.5, 40'000'000);
  line.batch_given.reset();
  line.vocabulary = 50265;
  line.device_name = "NVIDIA TITAN RTX";
  const auto state = [](const ModelBenchLine& one) {
    return cell_of(compare({}, {one}), "survey Fig4", "Full", "", "ms_per_instance and mem_mb")
        .state();
  };
  EXPECT_EQ(state(line), "fits: 15.62 ms and 1.25 MB per row");
  EXPECT_EQ(state(out_of_memory(line)), "out of memory");
}

// The sizes in the program are those of the commands in the recipes.
TEST(ReportBench, SizesOfTablesAreThoseOfTheRecipesCommands) {
  int found = 0;
  for (const char* name : {"leapformer_t2", "abc_t6", "survey_figure4"}) {
    const std::string path = concat(test::source_dir(), "/recipes/bench/", name, ".yaml");
    const std::string text = read_file(path, 1 << 20);
    const size_t begin = text.find("linnet bench model ");
    ASSERT_NE(begin, std::string::npos);
    std::istringstream command(text.substr(begin, text.find('\n', begin) - begin));
    ModelBenchLine line;
    line.vocabulary = ModelBenchOptions().vocabulary;
    for (std::string option, value; command >> option;) {
      if (!option.starts_with("--")) continue;
      command >> value;
      if (option == "--mode")
        line.mode = value == "train" ? BenchMode::train : BenchMode::inference;
      if (option == "--batch") line.batch_given = std::stoll(value);
      if (option == "--vocabulary") line.vocabulary = std::stoll(value);
    }
    for (const RecipePoint& point : load_recipe_points(path)) {
      line.bench.published = parse_recipe(point.node).published;
      if (!line.bench.published || !line.bench.published->has_rows()) continue;
      EXPECT_TRUE(has_published_sizes(line)) << name << ' ' << point.label;
      ModelBenchLine other = line;
      other.batch_given = 3;
      EXPECT_FALSE(has_published_sizes(other)) << name << ' ' << point.label;
      ++found;
    }
  }
  EXPECT_EQ(found, 18);
}

TEST(ReportBench, OneTableMeasuredInTwoWaysIsRefused) {
  Lines lines{published_line("leapformer T2", "lra_throughput", "cosFormer", 1024, 0.1, 100),
              published_line("leapformer T2", "lra_throughput", "Performer", 1024, 0.1, 100)};
  lines[1].device_name = "Another";
  lines[1].place = "b.jsonl:1";
  EXPECT_EQ(test::causes_of<UsageError>([&] { compare({}, lines); }), "conflict at b.jsonl:1");
  // In sizes of their own they claim nothing: the paper's table, that of RCP, and one each.
  lines[1].batch_given = 2;
  EXPECT_EQ(compare({}, lines).size(), 4U);
}

// With the printed accuracies of tasks, and speeds, RCP comes out as the formula has it.
TEST(ReportBench, CompositePerformanceOfRunsAndMeasuredSpeeds) {
  const ScratchDirectory scratch;
  Lines lines;
  int number = 0;
  for (const PublishedRow& row : published_rows()) {
    if (row.paper != "leapformer" || row.from != "point") continue;
    if (row.table == "T1") {
      PublishedRun run;
      run.table = "leapformer T1";
      run.task = row.task;
      run.model = row.model;
      run.accuracy = *row.value / 100;
      run.write(scratch / std::to_string(++number));
    }
    if (row.table == "T2" && setting_of(row, "seq_len") == "4096") {
      const size_t bytes = row.model == "Softmax Attn." ? 6000 : 2000;
      lines.push_back(published_line("leapformer T2", "lra_throughput", row.model, 4096,
                                     1 / *row.value, bytes));
    }
  }
  const auto runs = read_runs(find_runs(scratch.path()));
  int found = 0;
  const auto tables = compare(runs, lines);
  for (const ComparedTable& table : tables) {
    if (table.name != "leapformer T3") continue;
    EXPECT_THAT(table.note, AllOf(HasSubstr("Speeds of RCP: swept: updates, batch 32"),
                                  HasSubstr("own memory")));
    for (const ComparedCell& cell : table.cells) {
      ++found;
      ASSERT_TRUE(cell.mean.has_value()) << cell.model << ' ' << cell.metric;
      if (cell.metric == "rcp") {
        const auto printed = [](const PublishedRow& row) -> std::optional<double> {
          if (row.from == "point") return row.value;
          return formula_figure(row, [](const PublishedRow& task) { return task.value; });
        };
        EXPECT_NEAR(*cell.mean, formula_figure(*cell.row, printed).value(), 1e-9) << cell.model;
        EXPECT_NEAR(*cell.mean, *cell.row->value, 0.02) << cell.model;  // of rounded tasks
        continue;
      }
      const double rcp = *cell_of(tables, "leapformer T3", cell.model, "", "rcp").mean;
      const double speedup = *cell_of(tables, "swept", cell.model, "4096", "itr_per_s").mean / 1.64;
      EXPECT_NEAR(*cell.mean / rcp, (speedup + 3) / 2 / speedup, 1e-9) << cell.model;
    }
  }
  EXPECT_EQ(found, 20);
  // Not from speeds in other sizes.
  for (ModelBenchLine& line : lines) line.overrides = {"model.width=8"};
  EXPECT_EQ(cell_of(compare(runs, lines), "leapformer T3", "cosFormer", "", "rcp").mean,
            std::nullopt);
}

class CompositeOfRuns : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& mechanism, double accuracy,
             const std::string& data = "listops") {
    PublishedRun run;
    run.accuracy = accuracy;
    run.write(scratch_ / name);
    write_file(scratch_ / (name + "/recipe.yaml"),
               concat("name: small\nseed: 1\ndata: {kind: ", data,
                      "}\nmodel: {attention: {name: ", mechanism, "}}\n"));
  }
  std::vector<ComparedTable> tables() const {
    return compare(read_runs(find_runs(scratch_.path())));
  }

  ScratchDirectory scratch_;
};

TEST_F(CompositeOfRuns, IsMadeOfTheirOwnSpeedAndMemory) {
  write("softmax", "softmax", 0.50);
  write("linear", "linear", 0.48);
  write("cosformer", "cosformer", 0.49);
  const auto all = tables();
  // Equal speeds and memory: 1 / (1 + lost points / deviation), which is 1 point here.
  EXPECT_THAT(cell_of(all, "small", "linear", "test", "rcp").mean,
              Optional(DoubleNear(1.0 / 3, 1e-9)));
  EXPECT_THAT(cell_of(all, "small", "cosformer", "test", "rcp_mem").mean,
              Optional(DoubleNear(0.5, 1e-9)));
  EXPECT_EQ(cell_of(all, "small", "linear", "test", "rcp").ranks.measured, 3);
  EXPECT_THAT(all.at(0).note, HasSubstr("own memory"));
  EXPECT_THAT(comparison_text(all), AllOf(StartsWith("small: these runs\n"), HasSubstr("RCP")));
}

TEST_F(CompositeOfRuns, NeedsSoftmaxTwoOthersAndOneProtocol) {
  const auto has = [&] {
    const std::vector<ComparedTable> all = tables();
    for (const ComparedCell& cell : all.at(0).cells) {
      if (cell.metric == "rcp") return true;
    }
    return false;
  };
  write("softmax", "softmax", 0.50);
  write("linear", "linear", 0.48);
  EXPECT_FALSE(has());
  write("cosformer", "cosformer", 0.49);
  EXPECT_TRUE(has());
  write("cosformer", "cosformer", 0.49, "other");
  EXPECT_FALSE(has());
  write("cosformer", "cosformer", 0.49);
  for (const char* elsewhere : {R"({"machine": {"cpu": "x", "threads": 9}})",
                                R"({"device": "cuda:0"})", R"({"processes": 2})"}) {
    write_file(scratch_ / "linear/environment.json", elsewhere);
    EXPECT_FALSE(has()) << elsewhere;
  }
  remove_all(scratch_ / "linear");
  write("linear", "linear", 0.48);
  write("softmax", "lavo", 0.50);
  EXPECT_FALSE(has());
}

}  // namespace
}  // namespace linnet
