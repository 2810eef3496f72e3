// linnet bench attention: every mechanism, the growth of its figures, and the limit on it.
#include "recipes/engine/bench.h"
#include "attention/registry.h"
#include "core/json.h"
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
  expect_error({"bench", "attention", "--all", "linear"}, 2, "name none beside it");
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
  expect_error({"bench", "attention", "linear", "--max-growth", "1.1"}, 2, "two lengths or more");
  expect_error({"bench", "attention", "linear", "--lengths", "16,16", "--max-growth", "1.1"}, 2,
               "two lengths or more");
  expect_error({"bench", "attention", "softmax", "--lengths", "16,32", "--max-growth", "3"}, 2,
               "none of these mechanisms declares linear work");
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
  expect_error({"bench", "attention", "linear", "--dtype", "f64"}, 2, "f32 or bf16, got f64");
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
  expect_error({"bench", "attention", "abc_mlp", "--set", "slot=8"}, 2, "did you mean 'slots'");
  expect_error({"bench", "attention", "linear", "abc_mlp", "--set", "slots=8"}, 2,
               "--set is for one mechanism, 2 are named");
}

TEST_F(BenchCli, TensorCoresAreRefusedOnTheCpu) {
  std::vector<std::string> arguments = {"bench", "attention", "linear", "--lengths", "16", "--runs",
                                        "1",     "--device",  "cpu",    "--backend"};
  for (const char* backend : {"auto", "plain"}) {
    arguments.emplace_back(backend);
    EXPECT_EQ(linnet(arguments).code, 0) << backend;
    arguments.pop_back();
  }
  arguments.emplace_back("tensor_cores");
  expect_error(arguments, 2, "use --device cuda, or backend auto");
  arguments.back() = "fast";
  expect_error(arguments, 2, "expected auto, plain or tensor_cores");
}

TEST_F(BenchCli, CudnnNeedsAGpu) {
  expect_error({"bench", "attention", "softmax", "--lengths", "16", "--cudnn", "--dtype", "bf16",
                "--device", "cpu"},
               2, "--cudnn needs a CUDA device, and this runs on cpu; use --device cuda");
}

TEST(AttentionGrowth, IsTheSlopeOfTheLogarithms) {
  std::vector<AttentionBench> points;
  for (const char* name : {"softmax", "linear"}) {
    for (const int64_t length : {512, 1024, 4096}) {
      const auto T = static_cast<double>(length);
      AttentionBench& point = points.emplace_back();
      point.mechanism = name;
      point.length = length;
      point.forward_ms = 3 * T;
      point.forward_backward_ms = 0.5 * T * T;
      point.peak_bytes = static_cast<size_t>(length * length * length);
    }
  }
  points.emplace_back(points[0]).mechanism = "relu";  // at one length only
  const std::vector<AttentionGrowth> growth = attention_growth(points);
  ASSERT_EQ(growth.size(), 2U);
  EXPECT_EQ(growth[0].mechanism, "softmax");
  EXPECT_EQ(growth[0].declared, 2);
  EXPECT_EQ(growth[1].declared, 1);
  for (AttentionBench& point : points) point.mechanism = kCudnnSoftmax;
  EXPECT_EQ(attention_growth(points).at(0).declared, 2);
  for (const AttentionGrowth& each : growth) {
    EXPECT_NEAR(each.forward, 1, 1e-12);
    EXPECT_NEAR(each.forward_backward, 2, 1e-12);
    EXPECT_NEAR(each.memory, 3, 1e-12);
  }
}

}  // namespace
}  // namespace linnet
