// For tests of training on a device: the same run on the CPU, and with and without CUDA graphs.
#pragma once

#include <gmock/gmock.h>

#include <cmath>
#include <string>
#include <vector>

#include "core/files.h"
#include "tests/cuda_helpers.h"
#include "tests/recipes/row_kinds.h"

namespace linnet::test {

// f32 on both devices, sums in different orders, through three updates: the emulated device is off
// by at most 7e-7; a GPU has other products and exponentials, and Adam divides by small numbers.
inline constexpr double kSameArithmetic = 2e-5;

// A line of the log.
inline constexpr const char* kReplayed =
    "pass of [0-9]+ x [0-9]+ tokens is a CUDA graph of [0-9]+ ";

class DeviceRun : public RowKinds {
 protected:
  // The number `key` of every line of metrics.jsonl that has it.
  std::vector<double> series(const std::string& name, const std::string& key) const {
    std::vector<double> values;
    for (const std::string& line : left(name).metrics) {
      const JsonValue parsed = parse_json(line, name);
      for (const JsonMember& member : parsed.members()) {
        if (member.key == key) values.push_back(member.value.number());
      }
    }
    return values;
  }
  // Three updates on both devices give the same losses, gradient norms and validation figures.
  void expect_as_on_cpu(Recipe recipe, const std::string& label, double tolerance) {
    recipe.train.max_steps = 3;
    run(recipe, label + "-cpu");
    run(recipe, label + "-cuda", "auto", kGpu);
    for (const char* key : {"loss", "grad_norm", "nll"}) {
      const std::vector<double> expected = series(label + "-cpu", key);
      const std::vector<double> got = series(label + "-cuda", key);
      ASSERT_EQ(got.size(), expected.size()) << label << " " << key;
      ASSERT_FALSE(expected.empty()) << label << " " << key;
      for (size_t i = 0; i < got.size(); ++i) {
        const double error = std::abs(got[i] - expected[i]) / std::abs(expected[i]);
        EXPECT_TRUE(error <= tolerance)
            << label << " " << key << " " << i << ": " << got[i] << ", the CPU " << expected[i];
      }
    }
  }
  // Trains on the device and returns the run's log.
  std::string log_of(const Recipe& recipe, const std::string& name) {
    set_log_level(LogLevel::info);
    testing::internal::CaptureStderr();
    run(recipe, name, "auto", kGpu);
    testing::internal::GetCapturedStderr();
    set_log_level(LogLevel::error);
    return read_file(join_path(out(name), "log.txt"));
  }
  // Trains with and without graphs, expects the same, and returns the log of the run with them.
  std::string expect_same(Recipe recipe, const std::string& label) {
    recipe.evaluate.every_steps = 0;
    const std::string log = log_of(recipe, label + "-graph");
    recipe.train.cuda_graph = false;
    EXPECT_THAT(log_of(recipe, label + "-eager"), testing::Not(testing::HasSubstr("CUDA graph")))
        << label;
    expect_equal(left(label + "-graph"), left(label + "-eager"), label);
    return log;
  }
};

}  // namespace linnet::test
