// Runs beside the published numbers.
#include "recipes/engine/report_published.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "recipes/engine/report.h"
#include "tests/error_helpers.h"
#include "tests/file_failures.h"
#include "tests/recipes/published_runs.h"

namespace linnet {
namespace {

using test::add_line;
using test::causes_of;
using test::PublishedRun;
using test::ScratchDirectory;
using testing::DoubleNear;
using testing::ElementsAre;
using testing::Optional;

std::vector<ComparedTable> compared(const ScratchDirectory& scratch) {
  return compare(read_runs(find_runs(scratch.path())));
}

const ComparedCell& cell_of(const std::vector<ComparedTable>& tables, const std::string& table,
                            const std::string& task, const std::string& model,
                            const std::string& part = "", const std::string& metric = "") {
  for (const ComparedTable& each : tables) {
    for (const ComparedCell& cell : each.cells) {
      if (each.name == table && cell.task == task && cell.model == model &&
          cell.setting.find(part) != std::string::npos && (metric.empty() || cell.metric == metric))
        return cell;
    }
  }
  throw Error(concat("no cell ", table, ' ', task, ' ', model, ' ', part));
}

TEST(ReportPublished, MeanAndDeviationOverSeedsBesideThePaper) {
  const ScratchDirectory scratch;
  PublishedRun run;
  for (const auto& [seed, accuracy] : {std::pair(1, 0.37), {2, 0.38}, {3, 0.39}}) {
    run.seed = seed;
    run.accuracy = accuracy;
    run.write(scratch / concat("LinearAttn,seed=", seed));
  }
  run.model = "Cosformer";
  run.accuracy = 0.36;
  run.write(scratch / "Cosformer");
  const auto tables = compared(scratch);
  ASSERT_EQ(tables.size(), 1u);
  EXPECT_TRUE(tables[0].published);
  const ComparedCell& linear = cell_of(tables, "survey T2", "lra_listops", "LinearAttn");
  EXPECT_THAT(linear.mean, Optional(DoubleNear(38, 1e-12)));
  EXPECT_THAT(linear.deviation, Optional(DoubleNear(1, 1e-12)));
  EXPECT_EQ(linear.count, 3);
  EXPECT_EQ(linear.state(), "");
  EXPECT_THAT(linear.difference(), Optional(DoubleNear(38 - *linear.row->value, 1e-12)));
  EXPECT_EQ(linear.ranks.measured, 1);
  EXPECT_EQ(linear.ranks.measured_models, 2);
  EXPECT_EQ(linear.ranks.paper_models, 13);
  const ComparedCell& cosformer = cell_of(tables, "survey T2", "lra_listops", "Cosformer");
  EXPECT_EQ(cosformer.ranks.measured, 2);
  EXPECT_EQ(cosformer.deviation, std::nullopt);
  // All models of the claimed task, and the averages, which need the other tasks.
  const ComparedCell& full = cell_of(tables, "survey T2", "lra_listops", "Full");
  EXPECT_EQ(full.state(), "not run");
  EXPECT_GT(full.ranks.paper, 0);
  EXPECT_EQ(full.ranks.measured, 0);
  EXPECT_EQ(cell_of(tables, "survey T2", "lra_avg", "LinearAttn").mean, std::nullopt);
  EXPECT_EQ(tables[0].cells.size(), 26u);
}

TEST(ReportPublished, AveragesAreMadeBySeedWhereAllTasksHaveTheSame) {
  const ScratchDirectory scratch;
  int task_number = 0;
  for (const char* task :
       {"lra_listops", "lra_text", "lra_retrieval", "lra_pathfinder", "lra_image"}) {
    ++task_number;
    for (const int64_t seed : {1, 2}) {
      PublishedRun run;
      run.task = task;
      run.seed = seed;
      run.accuracy = 0.1 * task_number + 0.02 * static_cast<double>(seed);
      run.write(scratch / concat(task, "/LinearAttn,seed=", seed));
    }
  }
  const auto both = compared(scratch);
  const ComparedCell& average = cell_of(both, "survey T2", "lra_avg", "LinearAttn");
  EXPECT_THAT(average.mean, Optional(DoubleNear(33, 1e-9)));
  EXPECT_THAT(average.deviation, Optional(DoubleNear(std::sqrt(2.0), 1e-9)));
  EXPECT_EQ(average.count, 2);
  // With other seeds in one task it is the mean of the means.
  remove_all(scratch / "lra_text/LinearAttn,seed=2");
  const auto uneven = compared(scratch);
  const ComparedCell& mean = cell_of(uneven, "survey T2", "lra_avg", "LinearAttn");
  EXPECT_THAT(mean.mean, Optional(DoubleNear((13 + 22 + 33 + 43 + 53) / 5.0, 1e-9)));
  EXPECT_EQ(mean.deviation, std::nullopt);
  EXPECT_EQ(mean.count, 1);
  remove_all(scratch / "lra_image");
  EXPECT_EQ(cell_of(compared(scratch), "survey T2", "lra_avg", "LinearAttn").mean, std::nullopt);
}

TEST(ReportPublished, CellsSayWhyTheyHaveNoFigure) {
  const ScratchDirectory scratch;
  const auto state = [&](const PublishedRun& run) {
    remove_all(scratch / "run");
    run.write(scratch / "run");
    return cell_of(compared(scratch), "survey T2", "lra_listops", "LinearAttn").state();
  };
  PublishedRun run;
  EXPECT_EQ(state(run), "missing");
  run.accuracy = 0.5;
  EXPECT_EQ(state(run), "");
  run.log = "info    stopped by signal 15 at step 10; run again with --resume auto to continue";
  EXPECT_EQ(state(run), "unfinished");
  run.log = "info    run directory: runs/x";
  EXPECT_EQ(state(run), "unfinished");
  run.log = "error   training diverged: 5 updates in a row were skipped, since x";
  EXPECT_EQ(state(run), "diverged");
  run.log = "error   out of memory on cpu: 3 GB requested, x";
  EXPECT_EQ(state(run), "out of memory");
  run.log = "error   cannot write x: no space left on device";
  EXPECT_EQ(state(run), "failed");
  // It went on after that.
  run.log += "\n2026-01-31T23:59:59Z info    continuing run at step 10";
  EXPECT_EQ(state(run), "unfinished");
  run.log +=
      "\n2026-01-31T23:59:59Z warning a schedule\n2026-01-31T23:59:59Z info    done at step 9";
  EXPECT_EQ(state(run), "");
  // Without a log, the recipe's last update says that it is finished.
  run.log = "";
  EXPECT_EQ(state(run), "unfinished");
  run.sections = "train: {max_steps: 10}\n";
  EXPECT_EQ(state(run), "");
  run.sections = "train: {max_steps: 11}\n";
  EXPECT_EQ(state(run), "unfinished");
}

// A first stage that was cut short is no stage of the paper's.
TEST(ReportPublished, ARunFromAnotherFirstStageHasNoFigure) {
  const ScratchDirectory scratch;
  PublishedRun run;
  run.accuracy = 0.4;
  run.write(scratch / "run");
  const auto cell = [&](const char* more) {
    write_file(scratch / "run/environment.json",
               concat(R"({"init": {"path": "/a", "step": 1, "state": "weights", "file": "w", )",
                      R"("xxh3_128": "0")", more, "}}"));
    return cell_of(compared(scratch), "survey T2", "lra_listops", "LinearAttn");
  };
  EXPECT_EQ(cell("").mean, 40);
  EXPECT_EQ(cell(R"(, "published": true)").mean, 40);
  const ComparedCell other = cell(R"(, "published": false)");
  EXPECT_EQ(other.mean, std::nullopt);
  EXPECT_EQ(other.state(), "other first stage");
}

TEST(ReportPublished, SpeedAndMemoryAreOfNoRun) {
  const ScratchDirectory scratch;
  PublishedRun run;
  run.table = "lavo T2";
  run.task = "pg19_lm";
  run.model = "LAVO";
  run.write(scratch / "run");
  const auto tables = compared(scratch);
  for (const char* metric : {"mem_mb", "speedup_x"}) {
    const ComparedCell& cell =
        cell_of(tables, "lavo T2", "pg19_lm", "LAVO", "eval_context=8192", metric);
    EXPECT_EQ(cell.state(), "not measured by a training run") << metric;
  }
}

// Places of data are free: a set of another size is told.
TEST(ReportPublished, ANoteTellsOfOtherDataThanThePapers) {
  const ScratchDirectory scratch;
  PublishedRun run;
  run.accuracy = 0.4;
  const auto note = [&](int examples) {
    remove_all(scratch / "run");
    run.write(scratch / "run");
    add_line(
        scratch / "run", kLaterEvaluations,
        concat(R"({"kind": "evaluation", "step": 10, "split": "test", "context": 0, "nll": 1, )",
               R"("accuracy": 0.5, "scored_examples": )", examples, "}"));
    return compared(scratch).at(0).note;
  };
  EXPECT_EQ(note(2000), "");
  EXPECT_EQ(note(8),
            "Scored on other data than the paper's: lra_listops, 8 examples instead of 2000 "
            "(LinearAttn).");
  run.task = "lra_pathfinder";  // of which no number is fixed
  EXPECT_EQ(note(8), "");
}

TEST(ReportPublished, SeedsWithoutAFigureAreCounted) {
  const ScratchDirectory scratch;
  PublishedRun run;
  run.accuracy = 0.4;
  run.write(scratch / "a");
  run.seed = 2;
  run.accuracy = std::nan("");
  run.write(scratch / "b");
  const auto tables = compared(scratch);
  const ComparedCell& cell = cell_of(tables, "survey T2", "lra_listops", "LinearAttn");
  EXPECT_EQ(cell.count, 1);
  EXPECT_THAT(cell.without, ElementsAre(std::pair("diverged", 1)));
}

TEST(ReportPublished, PerplexityIsThatOfTheAskedWindows) {
  const ScratchDirectory scratch;
  PublishedRun run;
  run.table = "abc T3a";
  run.task = "wikitext103_lm";
  run.model = "BASE";
  run.more =
      "cells: [{setting: \"eval_context=480\", context: 512, stride: 32}, "
      "{setting: \"eval_context=0\", context: 512}]";
  run.perplexity = 21.5;
  run.write(scratch / "run");
  const auto line = [&](const char* split, const char* scored, double nll, double perplexity,
                        int step = 10) {
    add_line(scratch / "run", "metrics.jsonl",
             concat(R"({"kind": "evaluation", "step": )", step, R"(, "split": ")", split, "\", ",
                    scored, ", \"nll\": ", nll, ", \"perplexity\": ", perplexity, "}"));
  };
  line("test", R"("context": 512, "stride": 32)", 1, 18.5);
  line("validation", R"("context": 512, "stride": 512)", 3, 23.5, 2);
  line("validation", R"("context": 512, "stride": 512)", 2, 22.5, 4);  // the best one
  line("validation", R"("context": 512, "stride": 512)", 4, 24.5);
  const auto tables = compared(scratch);
  const auto figure = [&](const char* context, const char* split) {
    for (const ComparedCell& cell : tables.at(0).cells) {
      if (cell.model == "BASE" && has_setting(*cell.row, concat(context, ";split=", split)))
        return cell.mean ? *cell.mean : -1;
    }
    return -2.0;
  };
  EXPECT_EQ(figure("eval_context=0", "test"), 21.5);
  EXPECT_EQ(figure("eval_context=480", "test"), 18.5);
  EXPECT_EQ(figure("eval_context=0", "dev"), 22.5);
  EXPECT_EQ(figure("eval_context=480", "dev"), -1);
}

TEST(ReportPublished, ParametersAndFiguresAtAShareOfTheUpdates) {
  const ScratchDirectory scratch;
  PublishedRun run;
  run.table = "survey T6";
  run.task = "mlm_wikitext103";
  run.model = "Full";
  run.more = "setting: \"seq_len=512\", split: validation";
  run.steps = 1001;
  run.write(scratch / "run");
  for (const auto& [step, perplexity] : {std::pair(200, 9.0), {600, 8.0}, {1001, 7.5}}) {
    add_line(scratch / "run", "metrics.jsonl",
             concat(R"({"kind": "evaluation", "step": )", step,
                    R"(, "split": "validation", "context": 0, "nll": 1, "perplexity": )",
                    perplexity, "}"));
  }
  const auto tables = compared(scratch);
  const auto at = [&](const char* part) {
    return cell_of(tables, "survey T6", "mlm_wikitext103", "Full",
                   concat("seq_len=512;batch=256;", part))
        .mean;
  };
  EXPECT_EQ(at("progress=20%"), 9);
  EXPECT_EQ(at("progress=60%"), 8);
  EXPECT_EQ(at("progress=100%"), 7.5);
  remove_all(scratch / "run");
  PublishedRun lavo;
  lavo.table = "lavo T2";
  lavo.task = "pg19_lm";
  lavo.model = "LAVO";
  lavo.write(scratch / "run");
  const auto sizes = compared(scratch);
  EXPECT_EQ(cell_of(sizes, "lavo T2", "pg19_lm", "LAVO", "", "params_m").mean, 1.5);
  // The paper's own states stay.
  EXPECT_EQ(cell_of(sizes, "lavo T2", "pg19_lm", "vanilla", "eval_context=8192", "ppl").row->state,
            "out_of_memory");
}

TEST(ReportPublished, ALaterEvaluationJoins) {
  const ScratchDirectory scratch;
  PublishedRun run;
  run.write(scratch / "run");
  const auto figure = [&] {
    return cell_of(compared(scratch), "survey T2", "lra_listops", "LinearAttn").mean;
  };
  EXPECT_EQ(figure(), std::nullopt);
  for (const char* accuracy : {"0.25", "0.5"}) {
    add_line(
        scratch / "run", kLaterEvaluations,
        concat(R"({"kind": "evaluation", "step": 10, "split": "test", "context": 0, "nll": 1, )",
               "\"accuracy\": ", accuracy, "}"));
  }
  EXPECT_EQ(figure(), 50);
  // Other lines are left out and told.
  add_line(scratch / "run", kLaterEvaluations, R"({"kind": "train", "step": 10})");
  testing::internal::CaptureStderr();
  EXPECT_EQ(figure(), 50);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("malformed lines of evaluations.jsonl are left out: 3"));
}

TEST(ReportPublished, MeansOverModelsComeFromTheirAverages) {
  const ScratchDirectory scratch;
  int number = 0;
  for (const PublishedRow& row : published_rows()) {
    if (row.paper != "linearized_llm" || row.table != "T1" || row.from != "point") continue;
    PublishedRun run;
    run.table = "linearized_llm T1";
    run.task = row.task;
    run.model = row.model;
    run.accuracy = *row.value / 100;
    run.write(scratch / std::to_string(++number));
  }
  const auto tables = compared(scratch);
  const ComparedCell& mean =
      cell_of(tables, "linearized_llm text", "glue_avg", "mean of seven LAs", "backbone=bert");
  EXPECT_THAT(mean.difference(), Optional(DoubleNear(0, 0.01)));
  EXPECT_EQ(cell_of(tables, "linearized_llm T1", "glue_avg", "YOSO").ranks.measured, 2);
}

TEST(ReportPublished, RunsOfOtherRecipesHaveATableOfTheirOwn) {
  const ScratchDirectory scratch;
  const auto write = [&](const char* folder, int64_t seed, double accuracy, const char* optim) {
    PublishedRun run;
    run.accuracy = accuracy;
    run.write(scratch / folder);
    write_file(scratch / concat(folder, "/recipe.yaml"),
               concat("name: text_5k\nseed: ", seed, "\noptim: {lr: ", optim, "}\n"));
  };
  write("linear,seed=1", 1, 0.5, "1");
  write("linear,seed=2", 2, 0.52, "1");
  write("linear,lr=2", 1, 0.6, "2");
  const auto tables = compared(scratch);
  ASSERT_EQ(tables.size(), 1u);
  EXPECT_EQ(tables[0].name, "text_5k");
  EXPECT_FALSE(tables[0].published);
  ASSERT_EQ(tables[0].cells.size(), 2u);
  const ComparedCell& linear = cell_of(tables, "text_5k", "", "linear", "test");
  EXPECT_EQ(linear.row, nullptr);
  EXPECT_THAT(linear.mean, Optional(DoubleNear(51, 1e-9)));
  EXPECT_EQ(linear.count, 2);
  EXPECT_EQ(linear.ranks.measured, 2);
  EXPECT_EQ(linear.difference(), std::nullopt);
}

std::string refusal(const ScratchDirectory& scratch) {
  return causes_of<UsageError>([&] { compared(scratch); });
}

TEST(ReportPublished, TwoRecipesForOneRowAreRefused) {
  const ScratchDirectory scratch;
  PublishedRun run;
  run.sections = "optim: {lr: 1}\ntrain: {micro_batch: 2}\ncheckpoint: {keep: 3}\n";
  run.write(scratch / "a");
  EXPECT_EQ(refusal(scratch), "nothing thrown");
  run.write(scratch / "b");
  EXPECT_EQ(refusal(scratch), concat("conflict seed at ", scratch / "b"));
  run.seed = 2;
  run.write(scratch / "b");
  EXPECT_EQ(refusal(scratch), "nothing thrown");
  run.sections = "optim: {lr: 2}\ntrain: {micro_batch: 2}\ncheckpoint: {keep: 3}\n";
  run.write(scratch / "b");
  EXPECT_EQ(refusal(scratch), concat("conflict optim.lr at ", scratch / "b"));
  run.sections = "optim: {lr: 1}\ntrain: {micro_batch: 4}\ncheckpoint: {keep: 2}\n";
  run.write(scratch / "b");
  EXPECT_EQ(refusal(scratch), "nothing thrown");
}

TEST(ReportPublished, OtherDataOrProtocolsInOneTableAreRefused) {
  const ScratchDirectory scratch;
  PublishedRun run;
  run.sections = "train: {max_steps: 10}\noptim: {lr: 1}\n";
  run.write(scratch / "a");
  run.model = "Full";
  run.sections = "train: {max_steps: 10}\noptim: {lr: 2}\n";
  run.write(scratch / "b");
  EXPECT_EQ(refusal(scratch), "nothing thrown");
  run.sections = "train: {max_steps: 11}\n";
  run.write(scratch / "b");
  EXPECT_EQ(refusal(scratch), concat("conflict train.max_steps at ", scratch / "b"));
  run.sections = "train: {max_steps: 10}\nevaluate: {max_tokens: 5}\n";
  run.write(scratch / "b");
  EXPECT_EQ(refusal(scratch), concat("conflict evaluate at ", scratch / "b"));
  run.sections = "train: {max_steps: 10}\n";
  run.write(scratch / "b");
  for (const char* name : {"a", "b"}) {
    write_file(scratch / concat(name, "/environment.json"),
               concat(R"({"data": {"path": "/)", name, R"(", "fingerprints": {"train": "1"}}})"));
  }
  EXPECT_EQ(refusal(scratch), "nothing thrown");
  write_file(scratch / "b/environment.json", R"({"data": {"fingerprints": {"train": "2"}}})");
  EXPECT_EQ(refusal(scratch), concat("conflict data at ", scratch / "b"));
}

TEST(ReportPublished, ARowThatIsNoneIsTold) {
  const ScratchDirectory scratch;
  PublishedRun run;
  run.model = "Lavo";
  run.write(scratch / "run");
  const RunData data = read_run(scratch / "run");
  EXPECT_FALSE(data.published);
  EXPECT_THAT(data.problems, ElementsAre(testing::HasSubstr("published.model")));
}

}  // namespace
}  // namespace linnet
