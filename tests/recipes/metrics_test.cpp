// metrics.jsonl through crashes and resumes; the progress line; the environment.
#include "recipes/engine/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "core/files.h"
#include "recipes/engine/environment.h"
#include "recipes/engine/processor.h"
#include "tests/file_failures.h"

namespace linnet {
namespace {

using test::ScratchDirectory;
using testing::ElementsAre;
using testing::HasSubstr;

TrainMetrics train_line(int64_t step) {
  TrainMetrics metrics;
  metrics.step = step;
  metrics.tokens = step * 100;
  metrics.loss = 5.0 / static_cast<double>(step);
  metrics.lr = 1e-3;
  metrics.grad_norm = 0.5;
  metrics.tokens_per_s = 2000;
  return metrics;
}

EvaluationMetrics evaluation_line(int64_t step) {
  EvaluationMetrics metrics;
  metrics.step = step;
  metrics.split = "valid";
  metrics.scored = {512, 512, false};
  metrics.nll = 2;
  metrics.perplexity = 7.389;
  return metrics;
}

// "3" for a training line of step 3, "3e" for an evaluation.
std::vector<std::string> steps_in(const std::string& path) {
  std::vector<std::string> steps;
  const std::string text = read_file(path);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) throw Error("a line without an end");
    const JsonValue line = parse_json(text.substr(begin, end - begin), "line");
    steps.push_back(std::to_string(line.at("step").integer()) +
                    (line.find("split") != nullptr ? "e" : ""));
    begin = end + 1;
  }
  return steps;
}

TEST(Metrics, LinesHaveTheMembersOfTheContract) {
  TrainMetrics train = train_line(2);
  train.more.set("peak_tensor_bytes", 5);
  EXPECT_EQ(
      to_json(train).dump(),
      R"({"kind": "train", "step": 2, "tokens": 200, "loss": 2.5, "lr": 0.001, "grad_norm": 0.5, )"
      R"("tokens_per_s": 2000, "peak_tensor_bytes": 5})");
  EvaluationMetrics evaluation = evaluation_line(2);
  evaluation.accuracy = 0.5;
  EXPECT_EQ(to_json(evaluation).dump(),
            R"({"kind": "evaluation", "step": 2, "split": "valid", "context": 512, "stride": 512, )"
            R"("nll": 2, "perplexity": 7.389, "accuracy": 0.5})");
  // A chunk is no context.
  evaluation.scored = {64, 0, true};
  EXPECT_THAT(to_json(evaluation).dump(),
              AllOf(HasSubstr(R"("chunk": 64, "nll")"), testing::Not(HasSubstr("context"))));
  train.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(to_json(train).dump(), HasSubstr(R"("loss": "nan")"));
}

TEST(Metrics, WindowsAndChunksAreCalledByTheirNames) {
  EXPECT_EQ((ScoredText{512, 512, false}).text(), "context 512");
  EXPECT_EQ((ScoredText{512, 512, false}).text(true), "context 512, stride 512");
  EXPECT_EQ((ScoredText{512, 64, false}).text(), "context 512, stride 64");
  EXPECT_EQ((ScoredText{512, 0, false}).text(true), "context 512");
  EXPECT_EQ((ScoredText{512, 0, true}).text(true), "chunks of 512");
  EXPECT_EQ(ScoredText{}.text(true), "");
  EXPECT_EQ((ScoredText{512, 512, false}).suffix(), "_512");
  EXPECT_EQ((ScoredText{512, 64, false}).suffix(), "_512_stride_64");
  EXPECT_EQ((ScoredText{512, 0, true}).suffix(), "_512_streaming");
  EXPECT_EQ(ScoredText{}.suffix(), "");
}

TEST(Metrics, ResumingNeitherLosesNorRepeatsLines) {
  const ScratchDirectory scratch;
  const std::string path = scratch / "run/metrics.jsonl";
  {
    MetricsLog log(scratch / "run");
    for (int64_t step = 1; step <= 5; ++step) {
      log.write(train_line(step));
      if (step % 2 == 0) log.write(evaluation_line(step));
    }
    log.sync();
  }
  // A line that a crash cut short.
  File file(path, OpenMode::append);
  file.write("{\"step\": 6, \"lo");
  file.close();
  {
    MetricsLog log(scratch / "run", 4);
    EXPECT_THAT(steps_in(path), ElementsAre("1", "2", "2e", "3", "4", "4e"));
    log.write(train_line(5));
  }
  EXPECT_THAT(steps_in(path), ElementsAre("1", "2", "2e", "3", "4", "4e", "5"));
  { const MetricsLog log(scratch / "run", 9); }
  EXPECT_EQ(steps_in(path).size(), 7u);
  EXPECT_EQ(file_system().list(scratch / "run/tensorboard").size(), 3u);
  { const MetricsLog log(scratch / "run"); }
  EXPECT_EQ(read_file(path), "");
  EXPECT_EQ(file_system().list(scratch / "run/tensorboard").size(), 1u);
}

TEST(Metrics, DamagedLinesInTheMiddleAreKeptAndNamed) {
  const ScratchDirectory scratch;
  write_file(scratch / "metrics.jsonl", "{\"step\": 1}\ngarbage\n{\"step\": 2}\n{\"step\": 3}\n");
  testing::internal::CaptureStderr();
  { const MetricsLog log(scratch.path(), 2); }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("1 unreadable line"));
  EXPECT_EQ(read_file(scratch / "metrics.jsonl"), "{\"step\": 1}\ngarbage\n{\"step\": 2}\n");
}

TEST(Metrics, AFullDiskIsAnError) {
  const ScratchDirectory scratch;
  MetricsLog log(scratch.path());
  const test::FailingFileSystem failing(0, test::Failure::no_space);
  EXPECT_THROW(log.write(train_line(1)), Error);
}

TEST(Progress, LinesAreReadable) {
  TrainMetrics metrics = train_line(120);
  metrics.loss = 2.34511;
  metrics.lr = 5e-4;
  EXPECT_EQ(format_progress(metrics, 5000, 200.4, 812'345'678),
            "step 120/5000  loss 2.3451  lr 5.00e-04  norm 0.5  2000 tok/s  ETA 3:20  812 MB");
  metrics.tokens_per_s = 12345;
  EXPECT_EQ(format_progress(metrics, std::nullopt, 7400, 0),
            "step 120  loss 2.3451  lr 5.00e-04  norm 0.5  12.3k tok/s  ETA 2:03:20  0 MB");
  EXPECT_THAT(format_progress(metrics, 1, std::numeric_limits<double>::infinity(), 0),
              testing::Not(HasSubstr("ETA")));
}

TEST(Progress, PlainLinesAreRareButTheLastOneIsThere) {
  testing::internal::CaptureStderr();
  ProgressLine progress(1000);
  for (int step = 1; step <= 5; ++step) progress.show(concat("step ", step));
  progress.finish();
  progress.show("step 6");
  progress.finish();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "step 1\nstep 5\nstep 6\n");
}

TEST(Environment, NamesTheProcessorAsFarAsTheSystemTells) {
  const char* x86 =
      "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\n"
      "model name\t: AMD EPYC 9755\nstepping\t: 1\ncpu MHz\t\t: 2596.122\n\nprocessor\t: 1\n"
      "cpu MHz\t\t: 1000\n";
  const JsonValue amd = describe_processor(x86, "4100000\n");
  EXPECT_EQ(amd.dump(), R"({"cpu": "AMD EPYC 9755", )"
                        R"("cpu_model": "AuthenticAMD, family 26, model 2, stepping 1", )"
                        R"("cpu_mhz": 2596, "cpu_max_mhz": 4100})");
  EXPECT_EQ(processor_text(amd), "AMD EPYC 9755, 2596 MHz, at most 4100 MHz");
  const JsonValue arm = describe_processor("CPU implementer\t: 0x41\nCPU part\t: 0xd40\n", "");
  EXPECT_EQ(arm.dump(), R"({"cpu": "unknown", "cpu_model": "implementer 0x41, part 0xd40"})");
  EXPECT_EQ(describe_processor("cpu MHz : fast\n", "0").dump(), R"({"cpu": "unknown"})");
  // Of this machine: the environment has the same members.
  const JsonValue machine = collect_environment(1).at("machine"), here = processor();
  for (const JsonMember& member : here.members()) {
    EXPECT_NE(machine.find(member.key), nullptr) << member.key;
  }
}

TEST(Environment, NamesMachineLibrariesAndSeed) {
  const JsonValue environment = parse_json(collect_environment(7).dump(2), "environment.json");
  EXPECT_EQ(environment.at("seed").integer(), 7);
  EXPECT_GE(environment.at("git").text().size(), 7u);
  EXPECT_THAT(environment.at("compiler").text(), HasSubstr("+ "));
  EXPECT_GE(environment.at("machine").at("threads").integer(), 1);
  EXPECT_GT(environment.at("machine").at("memory_bytes").integer(), 1 << 20);
  for (const char* name : {"Eigen", "HDF5", "yaml-cpp", "xxHash", "utf8proc"})
    EXPECT_THAT(environment.at("libraries").at(name).text(), HasSubstr(".")) << name;
  EXPECT_EQ(collect_environment(UINT64_MAX).at("seed").text(), "18446744073709551615");
  EXPECT_GT(resident_memory_bytes(), uint64_t{1} << 20);
  EXPECT_GE(peak_resident_memory_bytes(), uint64_t{1} << 20);
}

}  // namespace
}  // namespace linnet
