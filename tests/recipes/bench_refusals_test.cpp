// What benchmarks of single operations refuse, by code and option.
#include <gtest/gtest.h>

#include "recipes/engine/bench/attention.h"
#include "recipes/engine/bench/conv.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

// With one setting changed.
template <typename Change>
std::string refusal(const Change& change) {
  AttentionBenchOptions options;
  options.lengths = {16};
  options.mechanisms = {"linear"};
  change(options);
  return test::causes_of<UsageError>([&] { bench_attention(options, {}); });
}

TEST(BenchRefusals, SizesOutOfRange) {
  EXPECT_EQ(refusal([](auto& o) { o.batch = 0; }), "out_of_range --batch");
  EXPECT_EQ(refusal([](auto& o) { o.heads = 0; }), "out_of_range --heads");
  EXPECT_EQ(refusal([](auto& o) { o.head_width = 0; }), "out_of_range --head-width");
  EXPECT_EQ(refusal([](auto& o) { o.runs = 0; }), "out_of_range --runs");
  EXPECT_EQ(refusal([](auto& o) { o.lengths = {16, 0}; }), "out_of_range --lengths");
}

TEST(BenchRefusals, WhatIsNamedTwice) {
  EXPECT_EQ(refusal([](auto& o) { o.lengths = {16, 8, 16}; }), "repeated --lengths");
  EXPECT_EQ(refusal([](auto& o) { o.mechanisms = {"linear", "linear"}; }), "repeated MECHANISM");
}

TEST(BenchRefusals, SettingsThatDoNotGoTogether) {
  EXPECT_EQ(refusal([](auto& o) { o.form = Form::cross; }), "conflict --form");
  EXPECT_EQ(refusal([](auto& o) {
              o.mechanisms = {"linear", "abc_mlp"};
              o.parameters = {"slots=8"};
            }),
            "conflict --set");
  EXPECT_EQ(refusal([](auto& o) { o.cudnn = true; }), "conflict --cudnn");
  const auto on_gpu = [](auto& o) { o.device.kind = DeviceKind::cuda; };
  EXPECT_EQ(refusal([&](auto& o) {
              on_gpu(o);
              o.cold = true;
            }),
            "conflict --cold");
  EXPECT_EQ(refusal([&](auto& o) {
              on_gpu(o);
              o.cudnn = true;
            }),
            "conflict --cudnn");
}

TEST(BenchRefusals, Convolutions) {
  const auto refusal = [](const std::vector<int64_t>& taps) {
    OperationOptions options;
    options.lengths = {16};
    return test::causes_of<UsageError>([&] { bench_convolutions(taps, options, {}); });
  };
  EXPECT_EQ(refusal({0}), "out_of_range --taps");
  EXPECT_EQ(refusal({3, 3}), "repeated --taps");
}

}  // namespace
}  // namespace linnet
