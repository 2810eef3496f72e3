// linnet bench decode, and weights in fewer bytes: the table, the lines, the scores, the refusals.
#include <sstream>

#include "core/json.h"
#include "tests/tools/cli.h"

namespace linnet::test {
namespace {

using testing::HasSubstr;

class DecodeCommand : public Cli {
 protected:
  static std::vector<JsonValue> lines_of(const std::string& text) {
    std::vector<JsonValue> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(parse_json(line, "line"));
    return lines;
  }
  void train() {
    ASSERT_EQ(
        linnet({"train", "tiny.yaml", "model.width=32", "--out", "run", "generate.tokens=0"}).code,
        0);
  }
};

TEST_F(DecodeCommand, AppendsALineForEachBatchAndLength) {
  const std::vector<std::string> command = {
      "bench", "decode",   "tiny.yaml", "--prompt",  "4", "--tokens", "60",   "--batch",
      "1,2",   "--device", "cpu",       "--threads", "1", "--json",   "lines"};
  const Outcome outcome = linnet(command);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("steps from the decode state, behind a prompt of 4"));
  EXPECT_THAT(outcome.out, HasSubstr("a token at length 64 takes "));
  EXPECT_THAT(outcome.out, HasSubstr(" MB of weights, which takes "));
  std::vector<std::string> without = command;
  without.emplace_back("--without-state");
  ASSERT_EQ(linnet(without).code, 0);
  const std::vector<JsonValue> lines = lines_of(read_file(folder_ / "lines"));
  ASSERT_EQ(lines.size(), 12U);  // 16, 32 and 64 tokens
  EXPECT_EQ(lines[2].at("kind").text(), "bench_decode");
  EXPECT_EQ(lines[2].at("mode").text(), "decode");
  EXPECT_EQ(lines[2].at("length").integer(), 64);
  EXPECT_EQ(lines[2].at("steps").integer(), 32);
  EXPECT_EQ(lines[2].at("prompt").integer(), 4);
  EXPECT_EQ(lines[5].at("batch").integer(), 2);
  EXPECT_EQ(lines[5].at("state_bytes").integer(), 2 * lines[2].at("state_bytes").integer());
  EXPECT_EQ(lines[11].at("mode").text(), "recompute");
  EXPECT_EQ(lines[11].find("steps"), nullptr);
  const Outcome report = linnet({"report", "lines"});
  ASSERT_EQ(report.code, 0) << report.err;
  EXPECT_THAT(report.out, HasSubstr("tiny: steps from the decode state behind 4 tokens, batch 2"));
  EXPECT_THAT(report.out, HasSubstr("tiny: a pass over the text for each token, batch 1"));
  EXPECT_THAT(report.out, HasSubstr("tokens/s so far"));
  EXPECT_THAT(read_file(folder_ / "report.html"), HasSubstr("Time of a row against its length"));
}

TEST_F(DecodeCommand, MeasuresACheckpointAndLimitsGrowth) {
  train();
  const std::vector<std::string> command = {"bench", "decode",   "run",   "--lengths",
                                            "8,16",  "--device", "cpu",   "--weights",
                                            "int8",  "--json",   "lines", "--max-growth"};
  std::vector<std::string> wide = command, narrow = command;
  wide.emplace_back("1000");
  narrow.emplace_back("0.001");
  EXPECT_EQ(linnet(wide).code, 0);
  const Outcome outcome = linnet(narrow);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.err,
            "error: a token at the last length takes more than 0.001 times as long as "
            "at the first: run, batch 1\n");
  EXPECT_EQ(lines_of(read_file(folder_ / "lines")).at(0).at("precision").text(), "int8 weights");
}

TEST_F(DecodeCommand, ComparesThreads) {
  const std::vector<std::string> command = {
      "bench",     "decode", "tiny.yaml", "--lengths", "8,16",         "--device",   "cpu",
      "--threads", "2",      "--json",    "lines",     "--one-thread", "--max-ratio"};
  std::vector<std::string> wide = command, narrow = command;
  wide.emplace_back("1000");
  narrow.emplace_back("0.001");
  const Outcome outcome = linnet(wide);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("batch 1, length 16: with 2 threads a step takes "));
  std::vector<int64_t> threads;
  for (const JsonValue& line : lines_of(read_file(folder_ / "lines"))) {
    threads.push_back(line.at("threads").integer());
  }
  EXPECT_EQ(threads, (std::vector<int64_t>{2, 2, 1, 1, 2, 2, 1, 1}));
  const Outcome slower = linnet(narrow);
  EXPECT_EQ(slower.code, 1);
  EXPECT_EQ(slower.err,
            "error: a step takes more than 0.001 times as long as with one thread: "
            "recipe, batch 1, length 8; recipe, batch 1, length 16\n");
  expect_error({"bench", "decode", "tiny.yaml", "--max-ratio", "1"}, 2, "--one-thread");
}

TEST_F(DecodeCommand, WeightsInFewerBytesAreScoredBesideF32) {
  train();
  const auto generated = [&](const std::string& weights) {
    return linnet({"generate", "run", "--prompt", "line", "--tokens", "20", "--temperature", "0",
                   "--device", "cpu", "--json", "--weights", weights});
  };
  const JsonValue plain = parse_json(generated("f32").out, "line");
  const double nats = plain.at("log_probabilities").elements().at(0).number();
  for (const std::string weights : {"bf16", "int8"}) {
    const Outcome outcome = generated(weights);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const double other =
        parse_json(outcome.out, "line").at("log_probabilities").elements().at(0).number();
    EXPECT_NE(other, nats) << "rounded weights";
    EXPECT_NEAR(other, nats, 0.05);
    const Outcome scored =
        linnet({"evaluate", "run", "--weights", weights, "--device", "cpu", "--json"});
    ASSERT_EQ(scored.code, 0) << scored.err;
    const JsonValue json = parse_json(scored.out, "stdout");
    EXPECT_EQ(json.at("weights").text(), weights);
    const double exact = json.at("scores").elements().at(0).at("nll").number(),
                 rounded = json.at("weights_scores").elements().at(0).at("nll").number();
    EXPECT_NE(rounded, exact);
    EXPECT_NEAR(rounded, exact, 0.01 * exact);
  }
  EXPECT_THAT(linnet({"evaluate", "run", "--weights", "int8", "--device", "cpu"}).out,
              HasSubstr("\nwith weights in int8\n"));
  const std::string kept = read_file(folder_ / "run/evaluations.jsonl");
  const std::vector<JsonValue> evaluations = lines_of(kept);
  // Each evaluation keeps both, the second with the name of its weights.
  ASSERT_EQ(evaluations.size(), 6u);
  const double exact = evaluations[0].at("nll").number();
  for (size_t i = 0; i < evaluations.size(); i += 2) {
    EXPECT_EQ(evaluations[i].find("weights"), nullptr);
    EXPECT_EQ(evaluations[i].at("nll").number(), exact);
    EXPECT_EQ(evaluations[i + 1].at("weights").text(), i == 0 ? "bf16" : "int8");
    EXPECT_NE(evaluations[i + 1].at("nll").number(), exact);
  }
}

TEST_F(DecodeCommand, TakesAsManyTokensAsGenerate) {
  const test::Outcome trained = linnet(
      {"train", "tiny.yaml", "model.positions=learned", "--out", "run", "generate.tokens=0"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::vector<std::string> command = {"bench", "decode",   "run", "--device",
                                            "cpu",   "--prompt", "4",   "--tokens"};
  std::vector<std::string> all = command, more = command;
  all.emplace_back("13");  // the last of 17 is not read
  more.emplace_back("14");
  const Outcome outcome = linnet(all);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const Outcome refused = linnet(more);
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.out, "") << "no heading";
  EXPECT_THAT(refused.err,
              HasSubstr("error: bench decode: 4 tokens of prompt and 14 to follow do not fit into "
                        "the 16 positions that the model handles; ask for fewer tokens; "));
}

TEST_F(DecodeCommand, RefusesWhatItCannotMeasure) {
  train();
  expect_error({"bench", "decode", "run", "--vocabulary", "100"}, 2,
               "overrides, --point and --vocabulary are for recipes");
  expect_error({"bench", "decode", "tiny.yaml", "--lengths", "8", "--max-growth", "2"}, 2,
               "--max-growth needs two lengths or more");
  expect_error({"bench", "decode", "tiny.yaml", "--lengths", "8", "--prompt", "7"}, 2,
               "leaves no step to time");
  expect_error({"bench", "decode", "tiny.yaml", "--batch", "65"}, 2, "--batch");
  expect_error({"bench", "decode", "tiny.yaml", "--weights", "int4"}, 2, "--weights");
  expect_error({"bench", "decode", "tiny.yaml", "model.attention={name: lara}"}, 2, "lara");
  expect_error({"bench", "decode", "tiny.yaml", "--tokens", "8", "--lengths", "9"}, 2, "--lengths");
  expect_error({"bench", "decode", "tiny.yaml", "train.precision=bf16", "--weights", "int8",
                "--device", "cpu"},
               2, "is for models in f32");
}

}  // namespace
}  // namespace linnet::test
