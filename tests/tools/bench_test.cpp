// linnet bench: every mechanism, the growth of its figures, and the limit on it; convolutions;
// updates.
#include "recipes/engine/bench/growth.h"

#include <cmath>
#include <map>

#include "attention/registry.h"
#include "core/comm/transport.h"
#include "core/json.h"
#include "core/sanitizers.h"
#include "tests/tools/cli.h"

namespace linnet {
namespace {

using test::Outcome;
using testing::HasSubstr;

class BenchCli : public test::Cli {
 protected:
  const std::vector<std::string> linear_ = {
      "bench",   "attention", "linear",    "--lengths", "16,4096",  "--runs", "1",
      "--heads", "1",         "--threads", "1",         "--device", "cpu",    "--max-growth"};
};

TEST_F(BenchCli, TokenizersCountWhatTheyEncodeAndLoadItBack) {
  folder_.write("books/a.txt", "one two\nthree");
  folder_.write("books/b.txt", "four");
  const Outcome outcome = linnet({"bench", "tokenize", "books", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const JsonValue result = parse_json(outcome.out, "stdout");
  EXPECT_EQ(result.at("files").integer(), 2);
  EXPECT_EQ(result.at("bytes").integer(), 17);
  EXPECT_EQ(result.at("tokens").integer(), 17);
  for (const char* rate : {"megabytes_per_second", "cached_megabytes_per_second"}) {
    EXPECT_GT(result.at(rate).number(), 0) << rate;
  }
  folder_.write("void/a.txt", "");
  expect_error({"bench", "tokenize", "void"}, 2, "hold no text");
}

TEST_F(BenchCli, AllMechanismsAreMeasuredInAFormThatTheyHave) {
  const Outcome outcome = linnet({"bench", "attention", "--all", "--lengths", "16", "--runs", "1",
                                  "--heads", "1", "--threads", "1", "--device", "cpu", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const JsonValue result = parse_json(outcome.out, "stdout");
  ASSERT_EQ(result.at("points").size(), mechanisms().size());
  for (size_t i = 0; i < mechanisms().size(); ++i) {
    const JsonValue& point = result.at("points").elements()[i];
    EXPECT_EQ(point.at("mechanism").text(), mechanisms()[i].name);
    EXPECT_TRUE(mechanisms()[i].traits.has(form_from_name(point.at("form").text())));
    EXPECT_GT(point.at("peak_bytes").integer(), 0);
  }
  EXPECT_EQ(result.at("growth").size(), 0U);
  EXPECT_FALSE(result.at("cold").boolean());
}

TEST_F(BenchCli, LinearMechanismsAreMeasuredInAFormWhereTheyAreLinear) {
  const Outcome outcome =
      linnet({"bench", "attention", "--linear", "--lengths", "16", "--runs", "1", "--heads", "1",
              "--threads", "1", "--device", "cpu", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::map<std::string, std::string> forms;
  const JsonValue result = parse_json(outcome.out, "stdout");
  for (const JsonValue& point : result.at("points").elements()) {
    forms[point.at("mechanism").text()] = point.at("form").text();
  }
  for (const Mechanism& mechanism : mechanisms()) {
    std::string expected;
    for (const Form form : {Form::noncausal, Form::causal}) {
      const bool linear =
          mechanism.traits.has(form) && stated_growth(mechanism.traits, form).power == 1;
      if (linear) expected = name_of(form);
    }
    EXPECT_EQ(forms[mechanism.name], expected) << mechanism.name;
  }
  EXPECT_EQ(forms["longshort"], "noncausal");
  EXPECT_EQ(forms["softmax"], "");
}

TEST_F(BenchCli, GrowthIsPrintedAndLimited) {
  std::vector<std::string> arguments = linear_;
  arguments.push_back("9");
  const Outcome within = linnet(arguments);
  EXPECT_EQ(within.code, 0) << within.err;
  EXPECT_THAT(within.out, HasSubstr("grows as T to the"));
  // Of 256 times the tokens.
  arguments.back() = "0.001";
  const Outcome beyond = linnet(arguments);
  EXPECT_EQ(beyond.code, 1);
  EXPECT_THAT(beyond.err, HasSubstr("grows faster than T to the 0.001: linear"));
}

TEST_F(BenchCli, FiguresComeWithTheirConditions) {
  std::vector<std::string> arguments = {
      "bench",     "attention", "linear",   "--lengths", "16",      "--runs", "1",
      "--threads", "2",         "--device", "cpu",       "--dtype", "bf16",   "--batch",
      "3",         "--heads",   "2",        "--backend", "plain"};
  EXPECT_THAT(linnet(arguments).out,
              testing::StartsWith("cpu, 2 threads, bf16, backend plain, batch 3, 2 heads of width "
                                  "64\nmechanism "));
  arguments.emplace_back("--json");
  const JsonValue result = parse_json(linnet(arguments).out, "stdout");
  EXPECT_EQ(result.at("threads").integer(), 2);
  EXPECT_EQ(result.at("dtype").text(), "bf16");
  EXPECT_EQ(result.at("backend").text(), "plain");
  EXPECT_THAT(
      linnet({"bench", "conv", "--taps", "3", "--lengths", "16", "--threads", "1", "--device",
              "cpu", "--heads", "1"})
          .out,
      testing::StartsWith("cpu, 1 thread, f32, backend auto, batch 1, 1 head of width 64\n"));
}

TEST_F(BenchCli, LossesOfBothKindsAreMeasured) {
  const std::vector<std::string> small = {
      "bench",     "loss",  "--words", "300", "--width",   "16", "--tokens", "40",
      "--cutoffs", "20,60", "--runs",  "1",   "--threads", "1",  "--device", "cpu"};
  EXPECT_THAT(linnet(small).out,
              testing::ContainsRegex("^cpu, f32, 300 words, width 16, 40 tokens\n.*\ntable .*\n"
                                     "adaptive .*\nadaptive is .* times as fast\n$"));
  std::vector<std::string> arguments = small;
  arguments.emplace_back("--json");
  const JsonValue result = parse_json(linnet(arguments).out, "stdout");
  EXPECT_EQ(result.at("words").integer(), 300);
  EXPECT_GT(result.at("table_ms").number(), 0);
  EXPECT_NEAR(result.at("ratio").number(),
              result.at("table_ms").number() / result.at("adaptive_ms").number(), 1e-9);
  EXPECT_GT(result.at("table_peak_bytes").integer(), result.at("adaptive_peak_bytes").integer());
  for (const char* wrong : {"60,20", "0,20", "20,300"}) {
    expect_error({"bench", "loss", "--words", "300", "--cutoffs", wrong}, 2, "--cutoffs must rise");
  }
}

TEST_F(BenchCli, ProductsTakeOneThreadUnlessTheyAreLarge) {
  const std::vector<std::string> arguments = {
      "bench",  "gemm",        "--sizes",   "1x64x64,4096x64x64,1x4096x1023",
      "--runs", "2",           "--threads", "2",
      "--json", "--max-ratio", "1000"};
  for (const bool step : {false, true}) {
    std::vector<std::string> all = arguments;
    if (step) {
      all[3] = "1x64x64,16x1024x1024,1x4096x1023";
      all.emplace_back("--step");
    }
    const Outcome outcome = linnet(all);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const JsonValue result = parse_json(outcome.out, "stdout");
    EXPECT_EQ(result.at("threads").integer(), 2);
    EXPECT_EQ(result.at("step").boolean(), step);
    std::vector<int64_t> threads;
    for (const JsonValue& point : result.at("points").elements()) {
      threads.push_back(point.at("threads").integer());
      EXPECT_NEAR(point.at("ratio").number(),
                  point.at("least_ms").number() / point.at("least_one_thread_ms").number(), 1e-9);
      EXPECT_GT(point.at("gflop_per_s").number(), 0);
    }
    EXPECT_EQ(threads, (std::vector<int64_t>{1, 2, 1}));
  }
}

TEST_F(BenchCli, ProductsThatAreSlowerThanAskedAreNamed) {
  const Outcome outcome = linnet({"bench", "gemm", "--sizes", "3x4x5,6x7x8", "--runs", "1",
                                  "--threads", "2", "--max-ratio", "0.001"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("\n3x4x5 "));
  EXPECT_THAT(outcome.err,
              HasSubstr("more than 0.001 times as long as with one thread: 3x4x5, 6x7x8"));
  for (const char* wrong : {"3x4", "3x4x5x6", "0x1x1", "3x4x", "x", "axbxc",
                            "2097152x1048576x1048576", "3x4x99999999999999999999"}) {
    expect_error({"bench", "gemm", "--sizes", wrong}, 2, "ROWSxCOLUMNSxDEPTH");
  }
  expect_error({"bench", "gemm", "--step", "--sizes", "65x2x2"}, 2, "at most 64 rows");
  expect_error({"bench", "gemm", "--dtype", "f64"}, 2, "--dtype is f32 or bf16");
}

TEST_F(BenchCli, HelpSaysWhereGrowthIsPrinted) {
  EXPECT_THAT(linnet({"bench", "attention", "--help"}).out, HasSubstr("growth is printed too"));
  EXPECT_THAT(linnet({"bench", "conv", "--help"}).out, testing::Not(HasSubstr("growth")));
}

TEST_F(BenchCli, AttentionIsMeasuredInTheAskedPrecision) {
  const auto peak = [&](const char* dtype) {
    const Outcome outcome =
        linnet({"bench", "attention", "linear", "--lengths", "512", "--runs", "1", "--threads", "1",
                "--device", "cpu", "--json", "--dtype", dtype});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return parse_json(outcome.out, "stdout").at("points").elements()[0].at("peak_bytes").integer();
  };
  EXPECT_NE(peak("f32"), peak("bf16"));
}

TEST_F(BenchCli, WhatWasMeasuredColdSaysSo) {
  const Outcome outcome = linnet({"bench", "attention", "linear", "--lengths", "16", "--runs", "1",
                                  "--threads", "1", "--device", "cpu", "--cold", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(parse_json(outcome.out, "stdout").at("cold").boolean());
}

TEST_F(BenchCli, ParametersAreThoseOfOneMechanism) {
  const auto work = [&](const char* setting) {
    const Outcome outcome = linnet({"bench", "attention", "abc_mlp", "--set", setting, "--lengths",
                                    "16", "--runs", "1", "--device", "cpu", "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return parse_json(outcome.out, "stdout")
        .at("points")
        .elements()[0]
        .at("multiply_adds")
        .number();
  };
  EXPECT_EQ(work("slots=8"), 2 * work("slots=4"));
}

TEST_F(BenchCli, TheCpuTakesBothBackends) {
  std::vector<std::string> arguments = {"bench", "attention", "linear", "--lengths", "16", "--runs",
                                        "1",     "--device",  "cpu",    "--backend"};
  for (const char* backend : {"auto", "plain"}) {
    arguments.emplace_back(backend);
    EXPECT_EQ(linnet(arguments).code, 0) << backend;
    arguments.pop_back();
  }
}

TEST_F(BenchCli, ConvolutionsAreMeasuredForEveryNumberOfTaps) {
  const std::vector<std::string> arguments = {"bench",     "conv", "--taps",   "3,2",
                                              "--lengths", "8,16", "--runs",   "1",
                                              "--heads",   "2",    "--device", "cpu"};
  std::vector<std::string> as_json = arguments;
  as_json.emplace_back("--json");
  const Outcome outcome = linnet(as_json);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const JsonValue points = parse_json(outcome.out, "stdout").at("points");
  ASSERT_EQ(points.size(), 4U);
  const JsonValue& first = points.elements()[0];
  EXPECT_EQ(first.at("mechanism").text(), "conv, 3 taps");
  EXPECT_EQ(first.at("multiply_adds").number(), 3 * 8 * 2 * 64);
  EXPECT_GT(first.at("forward_ms").number(), 0);
  EXPECT_GT(first.at("forward_backward_ms").number(), 0);
  EXPECT_GT(first.at("peak_bytes").integer(), 0);
  EXPECT_EQ(points.elements()[3].at("mechanism").text(), "conv, 2 taps");
  EXPECT_EQ(points.elements()[3].at("length").integer(), 16);
  EXPECT_THAT(linnet(arguments).out, HasSubstr("conv, 2 taps"));
}

TEST_F(BenchCli, WorkingMemoryOfUpdatesLeavesOutWeightsAndMoments) {
  const Outcome outcome =
      linnet({"bench", "train", "tiny.yaml", "--steps", "1", "--device", "cpu", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const JsonValue point = parse_json(outcome.out, "stdout").at("points").elements()[0];
  const int64_t parameters = point.at("parameters").integer();
  const int64_t lasting = point.at("peak_bytes").integer() - point.at("working_bytes").integer();
  // Weights and two moments in f32, with little that is rounded up; not the gradients.
  EXPECT_GE(lasting, 12 * parameters);
  EXPECT_LT(lasting, 14 * parameters);
}

TEST_F(BenchCli, TimesUpdatesOfSeveralProcesses) {
  if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo";
  if (kThreadSanitizer) GTEST_SKIP() << "Gloo's threads are not instrumented";
  const Outcome outcome =
      linnet({"bench", "train", "tiny.yaml", "train.bucket_mib=0.01", "--procs", "2", "--threads",
              "2", "--steps", "1", "--network-delay", "150", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const JsonValue result = parse_json(outcome.out, "stdout");
  EXPECT_EQ(result.at("processes").integer(), 2);
  EXPECT_EQ(result.at("threads").integer(), 1);
  EXPECT_GE(result.at("points").elements()[0].at("step_seconds").number(), 0.15);
  EXPECT_EQ(linnet({"bench", "train", "tiny.yaml", "--procs", "3"}).code, 2);  // of 4 examples
}

TEST_F(BenchCli, TheStatedGrowthIsThatOfWhatIsMeasured) {
  const auto declared = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {
        "bench", "attention", "--lengths", "16,64",    "--runs", "1",     "--heads",
        "1",     "--threads", "1",         "--device", "cpu",    "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = linnet(arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return parse_json(outcome.out, "stdout").at("growth").elements()[0].at("declared").number();
  };
  EXPECT_NEAR(declared({"longshort", "--form", "causal"}), 2, 1e-9);
  EXPECT_NEAR(declared({"longshort", "--form", "noncausal"}), 1, 1e-9);
  EXPECT_NEAR(declared({"sparse_fixed"}), 1, 1e-9);
  EXPECT_NEAR(declared({"sparse_fixed", "--set", "columns=1"}), 2, 1e-9);
  EXPECT_NEAR(declared({"probsparse", "--form", "noncausal"}), 1 + std::log2(6.0 / 4) / 2, 1e-9);
}

TEST(StatedGrowth, IsReadFromTheTextOfTheForm) {
  MixerTraits traits;
  const auto at = [&](const char* text, Form form) {
    traits.growth = text;
    return stated_growth(traits, form);
  };
  EXPECT_EQ(at("T (w + r)", Form::causal).power, 1);
  EXPECT_EQ(at("T^2", Form::cross).power, 2);
  EXPECT_EQ(at("T^2 / l; noncausal T ln T", Form::causal).power, 2);
  EXPECT_FALSE(at("T^2 / l; noncausal T ln T", Form::causal).logarithm);
  const StatedGrowth own = at("T^2 / l; noncausal T ln T", Form::noncausal);
  EXPECT_EQ(own.power, 1);
  EXPECT_TRUE(own.logarithm);
  EXPECT_NEAR(own.at(256) / own.at(16), 32, 1e-9);
  EXPECT_GT(own.at(1), 0);
  EXPECT_THROW(at("linear", Form::causal), Error);
}

OperationBench point_of(const std::string& mechanism, Form form, int64_t length, double ms) {
  OperationBench point;
  point.mechanism = mechanism;
  point.form = form;
  point.length = length;
  point.forward.least = point.forward_backward.least = ms;
  point.peak_bytes = static_cast<size_t>(length);
  point.growth = stated_growth(find_mechanism(mechanism).traits, form);
  return point;
}

TEST(AttentionGrowth, IsHeldToWhatTheMechanismStates) {
  // Times that grow as T^power ln(T), of `name`.
  const auto growing = [](const char* name, Form form, double power) {
    std::vector<OperationBench> points;
    for (const int64_t length : {2048, 4096, 8192, 16384, 32768}) {
      const auto T = static_cast<double>(length);
      points.push_back(point_of(name, form, length, std::pow(T, power) * std::log(T)));
    }
    return attention_growth(points);
  };
  // T ln T measures 1.11 over these lengths: too fast for work of T, as stated for T ln T.
  EXPECT_NEAR(growing("probsparse", Form::noncausal, 1)[0].declared, 1.112, 1e-3);
  EXPECT_NO_THROW(require_growth(growing("probsparse", Form::noncausal, 1), 1.1));
  EXPECT_NO_THROW(require_growth(growing("probsparse", Form::noncausal, 1.09), 1.1));
  EXPECT_THROW(require_growth(growing("probsparse", Form::noncausal, 1.11), 1.1), Error);
  EXPECT_THROW(require_growth(growing("linear", Form::causal, 1), 1.1), Error);
  EXPECT_NO_THROW(require_growth(growing("linear", Form::causal, 0.98), 1.1));
  EXPECT_THROW(require_growth(growing("longshort", Form::noncausal, 1), 1.1), Error);
  EXPECT_NO_THROW(require_growth(growing("longshort", Form::causal, 1.9), 1.1));
}

TEST(AttentionGrowth, IsTheSlopeOfTheLogarithms) {
  std::vector<OperationBench> points;
  for (const char* name : {"softmax", "linear"}) {
    for (const int64_t length : {512, 1024, 4096}) {
      const auto T = static_cast<double>(length);
      OperationBench& point = points.emplace_back(point_of(name, Form::causal, length, 3 * T));
      point.forward_backward.least = 0.5 * T * T;
      point.peak_bytes = static_cast<size_t>(length * length * length);
    }
  }
  points.emplace_back(points[0]).mechanism = "relu";  // at one length only
  const std::vector<AttentionGrowth> growth = attention_growth(points);
  ASSERT_EQ(growth.size(), 2U);
  EXPECT_EQ(growth[0].mechanism, "softmax");
  EXPECT_NEAR(growth[0].declared, 2, 1e-12);
  EXPECT_NEAR(growth[1].declared, 1, 1e-12);
  for (const AttentionGrowth& each : growth) {
    EXPECT_NEAR(each.forward, 1, 1e-12);
    EXPECT_NEAR(each.forward_backward, 2, 1e-12);
    EXPECT_NEAR(each.memory, 3, 1e-12);
  }
}

}  // namespace
}  // namespace linnet
