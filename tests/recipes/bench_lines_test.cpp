// The lines of 'linnet bench model --json', read back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/files.h"
#include "tests/error_helpers.h"
#include "tests/file_failures.h"
#include "tests/recipes/bench_lines.h"

namespace linnet {
namespace {

using testing::HasSubstr;

class BenchLines : public testing::Test {
 protected:
  std::vector<ModelBenchLine> read(const std::string& text) {
    write_file(scratch_ / "t.jsonl", text);
    return read_model_benches(scratch_ / "t.jsonl");
  }
  // What reading says of a good line and then `text`.
  std::string refusal(const std::string& text) {
    try {
      read(to_json(test::bench_line("softmax", 16, 0.5, 1000)).dump() + "\n" + text);
    } catch (const UsageError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      EXPECT_THAT(error.place(), HasSubstr("t.jsonl:2"));
      return error.what();
    }
    return "nothing thrown";
  }
  // The same of a line in which a value is another one.
  std::string refusal(const std::string& key, const JsonValue& value) {
    JsonValue json = to_json(test::bench_line("linear", 16, 0.5, 1000));
    return refusal(json.set(key, value).dump() + "\n");
  }

  test::ScratchDirectory scratch_;
};

TEST_F(BenchLines, ReadBackAsWritten) {
  ModelBenchLine published =
      test::published_line("leapformer T2", "lra_throughput", "cosFormer", 1024, 0.25, 5'000'000);
  published.overrides = {"optim.lr=1"};
  ModelBenchLine full = test::bench_line("softmax", 32768, 0, 0);
  full.bench.batch = 0;
  full.batch_given.reset();
  full.memory_bytes = 1 << 30;
  full.mode = BenchMode::inference;
  const std::string text = to_json(published).dump() + "\n" + to_json(full).dump() + "\n";
  const std::vector<ModelBenchLine> lines = read(text);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(to_json(lines[0]).dump() + "\n" + to_json(lines[1]).dump() + "\n", text);
  EXPECT_EQ(lines[0].bench.published->model, "cosFormer");
  EXPECT_EQ(lines[0].overrides, published.overrides);
  EXPECT_FALSE(lines[1].bench.fits());
  EXPECT_THAT(lines[1].place, HasSubstr("t.jsonl:2"));
}

TEST_F(BenchLines, OfDecodeReadBackAsWritten) {
  ModelBenchLine steps = test::bench_line("lavo", 4096, 0.001, 1000);
  steps.mode = BenchMode::decode;
  steps.bench.precision = "int8 weights";
  steps.bench.decode = DecodeFigures{16, 2048, 0.002, 950, 4096};
  ModelBenchLine passes = test::bench_line("lavo", 4096, 0.5, 1000);
  passes.mode = BenchMode::recompute;
  const std::string text = to_json(steps).dump() + "\n" + to_json(passes).dump() + "\n";
  const std::vector<ModelBenchLine> lines = read(text);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(to_json(lines[0]).dump() + "\n" + to_json(lines[1]).dump() + "\n", text);
  EXPECT_EQ(lines[0].bench.decode->state_bytes, 4096U);
  EXPECT_FALSE(lines[1].bench.decode);
  JsonValue json = to_json(steps);
  EXPECT_THAT(refusal(json.set("prompt", 0).dump() + "\n"),
              HasSubstr("'prompt' must be at least 1"));
}

TEST_F(BenchLines, WhatIsNoLineIsRefusedByItsPlace) {
  const std::string line = to_json(test::bench_line("linear", 16, 0.5, 1000)).dump();
  EXPECT_THAT(refusal(line.substr(0, line.size() / 2)), HasSubstr("the last line is cut"));
  EXPECT_THAT(refusal(line), HasSubstr("the last line is cut"));
  EXPECT_THAT(refusal(line.substr(0, line.size() / 2) + "\n"), HasSubstr("line"));
  EXPECT_THAT(refusal("{\"kind\": \"train\", \"step\": 1}\n"),
              HasSubstr("no line of 'linnet bench model --json'"));
  EXPECT_THAT(refusal("[]\n"), HasSubstr("no line of 'linnet bench model --json'"));
  EXPECT_THAT(refusal("\n"), HasSubstr("line"));
  EXPECT_EQ(test::causes_of<UsageError>([&] { read(""); }), "not_found at " + scratch_ / "t.jsonl");
}

TEST_F(BenchLines, WrongKeysAndValuesAreRefused) {
  EXPECT_THAT(refusal("batches", 3), HasSubstr("unknown key 'batches'; did you mean 'batch'?"));
  EXPECT_THAT(refusal("mode", "steps"), HasSubstr("'mode' must be train or inference"));
  EXPECT_THAT(refusal("mode", "decode"), HasSubstr("mode decode is of lines of kind bench_decode"));
  EXPECT_THAT(refusal("batch", 0), HasSubstr("'batch' must be at least 1"));
  EXPECT_THAT(refusal("length", "16"), HasSubstr("integer"));
  EXPECT_THAT(refusal("rate", 3.0), HasSubstr("their product 1"));
  EXPECT_THAT(refusal("seconds", -0.5), HasSubstr("must be positive"));
  EXPECT_THAT(refusal("seconds", "nan"), HasSubstr("must be positive"));
  EXPECT_THAT(refusal("state", "diverged"), HasSubstr("'state' must be out_of_memory"));
  EXPECT_THAT(refusal("peak_bytes", -1), HasSubstr("'peak_bytes' must be at least 1"));
  EXPECT_THAT(refusal("table", "leapformer T2"), HasSubstr("task"));
  JsonValue json = to_json(
      test::published_line("leapformer T2", "lra_throughput", "cosFormer", 1024, 0.25, 5000));
  EXPECT_THAT(refusal(json.set("model", "cosformer").dump() + "\n"),
              HasSubstr("no published row is of 'leapformer T2'"));
}

}  // namespace
}  // namespace linnet
