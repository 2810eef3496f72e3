// report.html: curves, tables, escaping, damaged input.
#include "recipes/engine/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/files.h"
#include "recipes/engine/metrics.h"
#include "recipes/engine/report_chart.h"
#include "tests/error_helpers.h"
#include "tests/file_failures.h"

namespace linnet {
namespace {

using test::ScratchDirectory;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

void make_run(const std::string& path, int steps) {
  MetricsLog log(path);
  for (int step = 1; step <= steps; ++step) {
    TrainMetrics train;
    train.step = step;
    train.tokens = step * 1000;
    train.loss = 1 + 4.0 / step;
    train.lr = 1e-3;
    train.grad_norm = 0.5;
    train.tokens_per_s = 5000 + step;
    log.write(train);
    if (step % 10 == 0) {
      EvaluationMetrics evaluation;
      evaluation.step = step;
      evaluation.split = "valid";
      evaluation.scored = {512, 512, false};
      evaluation.nll = 1 + 5.0 / step;
      evaluation.perplexity = std::exp(evaluation.nll);
      evaluation.bits_per_byte = evaluation.nll / std::log(2.0);
      log.write(evaluation);
    }
  }
}

int count(const std::string& text, const std::string& what) {
  int found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

// Every opened element is closed, in order, so the page is well-formed.
void expect_well_formed(const std::string& html) {
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const size_t end = html.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = html.substr(at + 1, end - at - 1);
    if (tag[0] == '!' || tag.starts_with("meta") || tag.ends_with("/")) continue;
    const std::string name = tag.substr(0, tag.find_first_of(" \n"));
    if (name[0] != '/') {
      open.push_back(name);
      continue;
    }
    ASSERT_FALSE(open.empty());
    ASSERT_EQ("/" + open.back(), name);
    open.pop_back();
  }
  EXPECT_THAT(open, IsEmpty());
}

TEST(Report, HasCurvesTablesAndTexts) {
  const ScratchDirectory scratch;
  make_run(scratch / "run-a", 100);
  write_file(scratch / "run-a/recipe.yaml", "seed: 1 # <tag>\n");
  write_file(scratch / "run-a/environment.json", "{\"cpu\": \"x < y\"}");
  write_file(scratch / "run-a/sample.txt", "</pre><script>alert(1)</script> \xff & done");
  write_report({scratch / "run-a"}, scratch / "run-a/report.html");
  const std::string html = read_file(scratch / "run-a/report.html");
  expect_well_formed(html);
  for (const char* title : {"Training loss", "Validation perplexity", "Learning rate",
                            "Gradient norm", "Throughput", "Validation bits per byte"}) {
    EXPECT_THAT(html, HasSubstr(concat("<figcaption>", title))) << title;
  }
  EXPECT_EQ(count(html, "<svg"), 6);
  EXPECT_EQ(count(html, "class=\"line\""), 6);
  EXPECT_EQ(count(html, "class=\"legend\""), 6);
  EXPECT_THAT(html, HasSubstr(">step</text>"));
  EXPECT_THAT(html, HasSubstr("<td>100k</td><td>1.04</td>"));
  EXPECT_THAT(html, HasSubstr("2.858 at 100"));
  EXPECT_THAT(html, HasSubstr("&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt; \xEF\xBF\xBD "
                              "&amp; done"));
  EXPECT_THAT(html, HasSubstr("# &lt;tag&gt;"));
  EXPECT_THAT(html, HasSubstr("x &lt; y"));
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("http")));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
}

TEST(Report, SaysWhatWasTrained) {
  const ScratchDirectory scratch;
  make_run(scratch / "run", 20);
  const auto page = [&](const char* recipe) {
    write_file(scratch / "run/recipe.yaml", recipe);
    const std::string html = report_html(read_runs({scratch / "run"}));
    expect_well_formed(html);
    return html;
  };
  EXPECT_THAT(page("description: a <small> one\nmodel: {kind: decoder, layers: 2, width: 8, "
                   "attention: {name: lavo, rank: 4}}\n"),
              HasSubstr(">a &lt;small&gt; one; decoder of 2 layers, width 8; attention {name: "
                        "lavo, rank: 4}</div>"));
  for (const char* other : {"model: [", "seed: 1\n", "- 1\n", "description: []\nmodel: {}\n"}) {
    EXPECT_THAT(page(other), Not(HasSubstr("attention"))) << other;
  }
}

TEST(Report, PointsInsideOfARunAreFound) {
  const ScratchDirectory scratch;
  for (const char* path : {"runs/sw", "runs/sw/lr=1", "runs/sw/lr=2", "runs/sw/checkpoints/x",
                           "runs/sw/tensorboard/x"}) {
    make_run(scratch / path, 1);
  }
  EXPECT_THAT(find_runs(scratch / "runs"),
              ElementsAre(scratch / "runs/sw", scratch / "runs/sw/lr=1", scratch / "runs/sw/lr=2"));
}

TEST(Report, RunsAreComparedSideBySide) {
  const ScratchDirectory scratch;
  make_run(scratch / "sweep/softmax", 20);
  make_run(scratch / "sweep/lavo", 20);
  make_run(scratch / "other/lavo", 20);
  const auto found = find_runs(scratch.path());
  EXPECT_THAT(found, ElementsAre(scratch / "other/lavo", scratch / "sweep/lavo",
                                 scratch / "sweep/softmax"));
  EXPECT_THAT(find_runs(scratch / "sweep/lavo"), ElementsAre(scratch / "sweep/lavo"));
  EXPECT_EQ(test::causes_of<UsageError>([&] { find_runs(scratch / "absent"); }),
            concat("not_found at ", scratch / "absent"));
  create_directories(scratch / "empty");
  EXPECT_EQ(test::causes_of<UsageError>([&] { find_runs(scratch / "empty"); }),
            concat("not_found at ", scratch / "empty"));
  write_report(found, scratch / "report.html");
  const std::string html = read_file(scratch / "report.html");
  expect_well_formed(html);
  EXPECT_EQ(count(html, "class=\"line\""), 18);
  EXPECT_THAT(html, HasSubstr("<h1>3 runs</h1>"));
  // The two runs of one name are told apart.
  EXPECT_THAT(html, HasSubstr(concat("<td>", scratch / "other/lavo", "</td>")));
  EXPECT_THAT(html, HasSubstr("<td>softmax</td>"));
}

TEST(Report, DamagedLinesAreCountedAndNamed) {
  const ScratchDirectory scratch;
  make_run(scratch / "run", 20);
  File file(scratch / "run/metrics.jsonl", OpenMode::append);
  file.write("not <json>\n{\"step\": 21, \"loss\": 1}\n{\"loss\": 1}\n{\"step\": 22}\n[1]\n\n");
  for (int i = 0; i < 20; ++i) file.write("{\n");
  file.write("{\"step\": 23, \"lo");
  file.close();
  write_file(scratch / "run/environment.json", "{");
  const RunData run = read_run(scratch / "run");
  EXPECT_EQ(run.loss.size(), 20u);
  EXPECT_EQ(run.malformed.count(), 27);
  EXPECT_EQ(run.malformed.numbers(), "23-49");
  EXPECT_THAT(run.malformed.reasons()[0], HasSubstr("metrics.jsonl:23: "));
  EXPECT_THAT(run.malformed.reasons()[1], HasSubstr("metrics.jsonl:24: "));
  EXPECT_THAT(run.problems, ElementsAre(HasSubstr("environment.json")));
  testing::internal::CaptureStderr();
  write_report({scratch / "run"}, scratch / "report.html");
  const std::string console = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count(console, "warning: "), 2);
  EXPECT_THAT(console, HasSubstr("27 lines of metrics.jsonl are malformed and left out: 23-49; "
                                 "metrics.jsonl:23: "));
  const std::string html = read_file(scratch / "report.html");
  expect_well_formed(html);
  EXPECT_THAT(html, HasSubstr("run: 27 lines of metrics.jsonl are malformed"));
  EXPECT_EQ(count(html, "<li>"), 8);
  EXPECT_THROW(read_run(scratch / "absent"), Error);
}

// Whatever is wrong with a line, it is left out whole, and the page is made of the rest.
TEST(Report, MalformedLinesLeaveNothingBehind) {
  const ScratchDirectory scratch;
  make_run(scratch / "run", 10);
  const std::string train = R"("kind": "train", "tokens": 9, "loss": 7, "lr": 7, "grad_norm": 7, )";
  const std::string evaluation = R"({"kind": "evaluation", "step": 3, "split": "new", "context": )";
  const std::string deep(200, '['), digits(10'000, '9');
  const std::vector<std::string> lines = {
      "garbage \xff\x1b[2J",
      std::string("{\"step\": 1, \0}", 14),
      "\xEF\xBB\xBF",
      "null",
      "{" + train + R"("tokens_per_s": 7})",
      R"({"step": 3, )" + train + R"("tokens_per_s": "fast"})",
      R"({"step": 3, )" + train + R"("tokens_per_s": 7, "parameters": 1.5})",
      R"({"step": 3, )" + train + R"("tokens_per_s": 7, "peak_resident_bytes": "much"})",
      R"({"step": 3, )" + train + R"("tokens_per_s": 7, "wall_seconds": "nan"})",
      R"({"step": 3, "step": 4, )" + train + R"("tokens_per_s": 7})",
      R"({"step": -3, )" + train + R"("tokens_per_s": 7})",
      R"({"step": 9223372036854775807, )" + train + R"("tokens_per_s": 7})",
      R"({"step": 3, )" + train + R"("tokens_per_s": 1)" + digits + "}",
      R"({"step": 3, )" + train + R"("tokens_per_s": )" + deep + "}",
      R"({"step": 3, "kind": 7})",
      R"({"step": 3, "kind": "another"})",
      evaluation + "16}",
      evaluation + R"(16, "nll": "high"})",
      evaluation + R"(16, "nll": 1, "accuracy": {}})",
      evaluation + R"("long", "nll": 1})",
      evaluation + std::string(1 << 21, '1') + "}"};
  File file(scratch / "run/metrics.jsonl", OpenMode::append);
  for (const std::string& line : lines) file.write(line + "\n" + R"({"step": 1)" + "\n");
  file.close();
  const RunData run = read_run(scratch / "run");
  EXPECT_EQ(run.malformed.count(), 2 * static_cast<int64_t>(lines.size()));
  EXPECT_EQ(run.malformed.numbers(), concat("12-", 11 + 2 * lines.size()));
  EXPECT_EQ(run.loss.size(), 10u);
  EXPECT_EQ(run.tokens_per_s.size(), 10u);
  EXPECT_EQ(run.evaluations.size(), 1u);
  EXPECT_EQ(run.tokens, 10'000);
  testing::internal::CaptureStderr();
  const std::string html = report_html(read_runs({scratch / "run"}));
  EXPECT_LT(testing::internal::GetCapturedStderr().size(), 1000u);
  expect_well_formed(html);
  EXPECT_LT(html.size(), 100'000u);
}

TEST(Report, NamesOfALineReachNoTerminal) {
  const ScratchDirectory scratch;
  create_directories(scratch / "run");
  write_file(scratch / "run/metrics.jsonl",
             R"({"kind": "evaluation", "step": 1, "split": "\u001b[2J", "context": 8, "nll": 1})");
  EXPECT_THAT(report_text({read_run(scratch / "run")}),
              AllOf(HasSubstr("\\x1b[2J"), Not(HasSubstr("\x1b"))));
}

TEST(Report, NumbersOfMalformedLinesAreStretches) {
  MalformedLines lines;
  EXPECT_EQ(lines.numbers(), "");
  for (const int64_t line : {2, 3, 4, 9, 11, 12}) lines.add(line, "why");
  EXPECT_EQ(lines.numbers(), "2-4, 9, 11-12");
  for (int64_t line = 14; line < 100; line += 2) lines.add(line, "why");
  EXPECT_EQ(lines.count(), 49);
  EXPECT_THAT(lines.numbers(), testing::EndsWith("44, 46 and others"));
  EXPECT_EQ(lines.reasons().size(), 8u);
}

TEST(Report, AbsurdValuesAreShown) {
  const ScratchDirectory scratch;
  const std::vector<std::string> values = {
      "0", "1e17", "100000000000000016", "-1e300", "1e308", "\"-inf\"", "\"nan\"", "5e-324"};
  for (const std::string& a : values) {
    for (const std::string& b : values) {
      std::string text;
      for (const auto& [step, value] : {std::pair("9007199254740990", a), {"9007199254740992", b}})
        text += concat("{\"kind\": \"train\", \"step\": ", step,
                       ", \"tokens\": 1, \"loss\": ", value, ", \"lr\": ", value,
                       ", \"grad_norm\": ", value, ", \"tokens_per_s\": ", value, "}\n");
      create_directories(scratch / "run");
      write_file(scratch / "run/metrics.jsonl", text);
      const std::string html = report_html({read_run(scratch / "run")});
      expect_well_formed(html);
      EXPECT_LT(html.size(), 100'000u) << a << " " << b;
    }
  }
}

TEST(Report, EmptyAndNonFiniteRunsAreShown) {
  const ScratchDirectory scratch;
  make_run(scratch / "new", 0);
  write_report({scratch / "new"}, scratch / "new.html");
  EXPECT_EQ(count(read_file(scratch / "new.html"), "No values yet."), 5);
  {
    MetricsLog log(scratch / "diverged");
    for (int step = 1; step <= 3; ++step) {
      TrainMetrics train;
      train.step = step;
      train.loss = step < 3 ? 5 : std::numeric_limits<double>::quiet_NaN();
      train.grad_norm = std::numeric_limits<double>::infinity();
      log.write(train);
    }
  }
  write_report({scratch / "diverged"}, scratch / "diverged.html");
  const std::string html = read_file(scratch / "diverged.html");
  expect_well_formed(html);
  EXPECT_THAT(html, HasSubstr("1 values that are not finite"));
  EXPECT_THAT(html, HasSubstr("3 values that are not finite"));
  EXPECT_THAT(html, HasSubstr("<td>nan</td><td>inf</td>"));
}

TEST(Report, TextTableIsAligned) {
  const ScratchDirectory scratch;
  make_run(scratch / "run", 10);
  EXPECT_EQ(report_text({read_run(scratch / "run")}),
            "run  steps  tokens  loss  gradient norm  tokens/s (median)\n"
            "run     10     10k   1.4            0.5               5006\n"
            "\n"
            "run  split  context  step  nll  perplexity  best perplexity  bits/byte\n"
            "run  valid      512    10  1.5       4.482      4.482 at 10      2.164\n");
}

TEST(Report, ShowsParametersPositionsWallTimeAndMemory) {
  const ScratchDirectory scratch;
  {
    MetricsLog log(scratch / "run");
    TrainMetrics train;
    train.step = 1;
    train.more.set("wall_seconds", 200.0)
        .set("peak_tensor_bytes", 96'000'000)
        .set("peak_resident_bytes", 812'345'678)
        .set("parameters", 1234567);
    log.write(train);
  }
  write_file(scratch / "run/recipe.yaml",
             "model: {kind: decoder, layers: 2, width: 8, positions: rotary, attention: {}}\n");
  const RunData run = read_run(scratch / "run");
  const std::string html = report_html({run});
  expect_well_formed(html);
  EXPECT_THAT(html,
              HasSubstr(">decoder of 2 layers, width 8, positions rotary; attention {}</div>"));
  EXPECT_THAT(html,
              HasSubstr(">1234567 parameters; wall time 3:20; peak memory 812 MB RAM; at most "
                        "96 MB of tensors</div>"));
  EXPECT_THAT(html, HasSubstr("<b>3:20</b><span>wall time</span>"));
  EXPECT_EQ(report_text({run}),
            "run  parameters  positions  steps  tokens  loss  gradient norm  tokens/s (median)  "
            "wall time  peak RAM  peak tensors\n"
            "run     1234567     rotary      1       0     0              0                  0  "
            "     3:20    812 MB         96 MB\n");
}

// Windows, chunks and whole examples, as this version and as earlier ones wrote them.
TEST(Report, EvaluationsAreNamedByWhatWasScored) {
  const ScratchDirectory scratch;
  for (const char* name : {"new", "old"}) create_directories(scratch / name);
  write_file(
      scratch / "new/metrics.jsonl",
      R"({"kind": "evaluation", "step": 1, "split": "test", "context": 8, "stride": 8, "nll": 1})"
      "\n"
      R"({"kind": "evaluation", "step": 1, "split": "test", "context": 8, "stride": 2, "nll": 2})"
      "\n"
      R"({"kind": "evaluation", "step": 1, "split": "test", "chunk": 8, "nll": 3})"
      "\n");
  write_file(scratch / "old/metrics.jsonl",
             R"({"step": 1, "split": "test", "context": 8, "nll": 1, "mode": "windows"})"
             "\n"
             R"({"step": 1, "split": "test", "context": 8, "nll": 3, "mode": "streaming"})"
             "\n");
  const auto texts_of = [&](const char* name) {
    std::vector<std::string> texts;
    const RunData run = read_run(scratch / name);
    EXPECT_THAT(run.problems, IsEmpty());
    for (const EvaluationCurves& curves : run.evaluations) texts.push_back(curves.scored.text());
    return texts;
  };
  EXPECT_THAT(texts_of("new"), ElementsAre("context 8", "context 8, stride 2", "chunks of 8"));
  EXPECT_THAT(texts_of("old"), ElementsAre("context 8", "chunks of 8"));
  EXPECT_THAT(report_text({read_run(scratch / "new")}),
              AllOf(HasSubstr("8, stride 2"), HasSubstr("chunks of 8")));
}

TEST(Report, AClassifierHasNoContext) {
  const ScratchDirectory scratch;
  {
    MetricsLog log(scratch / "run");
    EvaluationMetrics evaluation;
    evaluation.step = 3;
    evaluation.split = "validation";
    evaluation.nll = 0.5;
    evaluation.accuracy = 0.75;
    log.write(evaluation);
  }
  const RunData run = read_run(scratch / "run");
  EXPECT_THAT(report_html({run}),
              AllOf(Not(HasSubstr("context")), Not(HasSubstr(" at 0")), HasSubstr("75.0 %"),
                    HasSubstr("best accuracy, validation<")));
  EXPECT_THAT(report_text({run}), AllOf(Not(HasSubstr("context")), HasSubstr("0.75 at 3")));
}

TEST(ReportChart, LongSeriesBecomeABandAndAMean) {
  MetricCurve curve;
  for (int i = 0; i < 4000; ++i) curve.push_back({static_cast<double>(i), i % 2 ? 1.0 : 3.0});
  const std::string html = chart_to_html({"T", "y", {{"s", curve, 0, 0, false}}, true});
  EXPECT_EQ(count(html, "class=\"band\""), 1);
  // The mean is flat: all its points have one height.
  const size_t begin = html.find("class=\"line\" d=\"M");
  const std::string path = html.substr(begin, html.find("stroke", begin) - begin);
  EXPECT_EQ(count(path, "L"), 199);
  const std::string height =
      path.substr(path.find(' ', path.find('M')), path.find('L') - path.find(' ', path.find('M')));
  EXPECT_EQ(count(path, height), 200);
}

TEST(ReportChart, WideRangesAreLogarithmic) {
  const MetricCurve curve{{1, 0.01}, {2, 1}, {3, 100}};
  EXPECT_THAT(chart_to_html({"T", "y", {{"s", curve, 0, 0, false}}, false}), HasSubstr("y (log)"));
  EXPECT_THAT(chart_to_html({"T", "y", {{"s", curve, 0, 0, false}}, true}),
              Not(HasSubstr("y (log)")));
}

TEST(ReportChart, ConstantAndSinglePointsAreDrawn) {
  for (const MetricCurve& curve : {MetricCurve{{5, 2}}, MetricCurve{{5, 0}, {6, 0}}}) {
    const std::string html = chart_to_html({"T", "y", {{"s", curve, 0, 0, false}}, false});
    EXPECT_THAT(html, HasSubstr("class=\"line\""));
    EXPECT_THAT(html, Not(HasSubstr("nan")));
    EXPECT_THAT(html, Not(HasSubstr("inf")));
  }
}

TEST(ReportChart, TicksAreRound) {
  EXPECT_THAT(linear_ticks(0, 10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(linear_ticks(0.9, 5.2, 5), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(format_tick(0), "0");
  EXPECT_EQ(format_tick(0.25), "0.25");
  EXPECT_EQ(format_tick(9999), "9999");
  EXPECT_EQ(format_tick(15000), "15k");
  EXPECT_EQ(format_tick(2.5e6), "2.5M");
  EXPECT_EQ(format_tick(5e-4), "5e-4");
  EXPECT_EQ(format_tick(-1.5e-7), "-1.5e-7");
  EXPECT_EQ(format_tick(1e-3), "1e-3");
}

}  // namespace
}  // namespace linnet
