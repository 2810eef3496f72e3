// linnet bench model: its table, its lines for other programs, what it refuses.
#include "tests/tools/cli.h"

#include "core/json.h"

namespace linnet::test {
namespace {

using testing::HasSubstr;

using BenchModelCommand = Cli;

std::vector<JsonValue> lines_of(const std::string& text) {
  std::vector<JsonValue> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    lines.push_back(parse_json(text.substr(begin, end - begin), "line"));
    begin = end + 1;
  }
  return lines;
}

TEST_F(BenchModelCommand, AppendsALineForEachPointAndLength) {
  folder_.write("swept.yaml", R"(
extends: tiny.yaml
name: swept
published: {table: leapformer T2, task: lra_throughput}
sweep:
  mechanism:
    - {label: Linear Attn., model.attention: {name: linear}}
    - {label: RoPE, model.attention: {name: rope_linear}, published.model: RoPE w/ Linear Attn.}
)");
  const std::vector<std::string> command = {
      "bench", "model",  "swept.yaml", "--lengths", "16,32", "--runs",    "1", "--batch",
      "2",     "--json", "lines",      "--device",  "cpu",   "--threads", "1"};
  Outcome outcome = linnet(command);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("updates on random tokens of 256 words, at most 4 GiB"));
  EXPECT_THAT(outcome.out, HasSubstr("Linear Attn."));
  std::vector<std::string> inference = command;
  inference.insert(inference.end(), {"--mode", "inference", "--point", "mechanism=RoPE"});
  ASSERT_EQ(linnet(inference).code, 0);
  const std::vector<JsonValue> lines = lines_of(read_file(folder_ / "lines"));
  ASSERT_EQ(lines.size(), 6U);
  EXPECT_EQ(lines[1].at("point").text(), "mechanism=Linear Attn.");
  EXPECT_EQ(lines[1].at("length").integer(), 32);
  EXPECT_EQ(lines[1].at("mode").text(), "train");
  EXPECT_EQ(lines[5].at("mode").text(), "inference");
  EXPECT_EQ(lines[5].at("model").text(), "RoPE w/ Linear Attn.");
  EXPECT_EQ(lines[0].at("attention").text(), "linear");
  EXPECT_EQ(lines[0].at("overrides").size(), 0U);
  // Other sizes than the paper's: beside its figures, and not in their column.
  const Outcome report = linnet({"report", "lines"});
  ASSERT_EQ(report.code, 0) << report.err;
  EXPECT_THAT(report.out, HasSubstr("leapformer T2: the paper's figures and these runs'\n"));
  EXPECT_THAT(report.out, HasSubstr("\nswept: updates, batch 2, 256 words, f32, on "));
  EXPECT_THAT(report.out, HasSubstr("\nswept: forward passes, batch 2, "));
  EXPECT_THAT(report.out, HasSubstr("\n./report.html\n"));
  EXPECT_THAT(read_file(folder_ / "report.html"), HasSubstr("Time of a row against its length"));
  EXPECT_EQ(linnet({"report", "lines", "--csv", "--html", "t.html"}).code, 0);
  for (const JsonValue& line : lines) {
    EXPECT_EQ(line.at("kind").text(), "bench_model");
    EXPECT_EQ(line.at("recipe").text(), "swept");
    EXPECT_EQ(line.at("table").text(), "leapformer T2");
    EXPECT_EQ(line.at("batch").integer(), 2);
    EXPECT_TRUE(line.at("batch_given").boolean());
    EXPECT_NEAR(line.at("rate").number() * line.at("seconds").number(), 1, 1e-9);
    EXPECT_GT(line.at("peak_bytes").integer(), 4 * line.at("parameters").integer());
    EXPECT_EQ(line.at("vocabulary").integer(), 256);
    EXPECT_EQ(line.at("device").text(), "cpu");
    EXPECT_EQ(line.at("date").text().size(), 20U);
    EXPECT_EQ(line.find("state"), nullptr);
  }
}

TEST_F(BenchModelCommand, SaysWhereMemoryEnds) {
  const Outcome outcome =
      linnet({"bench", "model", "tiny.yaml", "--lengths", "16,1000000", "--runs", "1", "--memory",
              "0.002", "--json", "lines", "--device", "cpu", "--threads", "1"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("1000000  out of memory\n"));
  const std::vector<JsonValue> lines = lines_of(read_file(folder_ / "lines"));
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_GT(lines[0].at("batch").integer(), 1);
  EXPECT_FALSE(lines[0].at("batch_given").boolean());
  EXPECT_LE(lines[0].at("peak_bytes").integer(), lines[0].at("memory_bytes").integer());
  EXPECT_EQ(lines[1].at("state").text(), "out_of_memory");
  EXPECT_EQ(lines[1].find("rate"), nullptr);
  EXPECT_EQ(lines[1].find("batch"), nullptr);
}

TEST_F(BenchModelCommand, OverridesStandInTheLines) {
  ASSERT_EQ(linnet({"bench", "model", "tiny.yaml", "model.attention={name: softmax}", "--lengths",
                    "16", "--runs", "1", "--batch", "1", "--json", "lines", "--device", "cpu"})
                .code,
            0);
  const JsonValue line = lines_of(read_file(folder_ / "lines")).at(0);
  EXPECT_EQ(line.at("overrides").elements().at(0).text(), "model.attention={name: softmax}");
  EXPECT_EQ(line.at("attention").text(), "softmax");
}

TEST_F(BenchModelCommand, ReportRefusesFilesThatAreNotItsLines) {
  folder_.write("cut", "{\"kind\": \"bench_mo");
  expect_error({"report", "cut"}, 2, "cut:1: the last line is cut");
  expect_error({"report", "tiny.yaml"}, 2, "tiny.yaml:1");
  expect_error({"report", "nothing"}, 2, "is no run directory");
}

TEST_F(BenchModelCommand, RefusesWhatItCannotMeasure) {
  expect_error({"bench", "model", "tiny.yaml"}, 2, "--lengths");
  expect_error({"bench", "model", "tiny.yaml", "--lengths", "0"}, 2, "--lengths");
  expect_error({"bench", "model", "tiny.yaml", "--lengths", "16", "--mode", "decode"}, 2, "--mode");
  expect_error({"bench", "model", "tiny.yaml", "--lengths", "16", "--memory", "0"}, 2, "--memory");
  expect_error({"bench", "model", "tiny.yaml", "--lengths", "16", "--point", "x"}, 2, "point");
}

}  // namespace
}  // namespace linnet::test
