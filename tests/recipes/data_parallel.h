// Runs of several processes, beside the same runs of one.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "core/files.h"
#include "tests/core/comm_ranks.h"
#include "tests/recipes/row_kinds.h"

namespace linnet::test {

// The first process, which starts the ranks, shares its folder_ with them.
class DataParallel : public RowKinds {
 protected:
  static constexpr const char* kFolder = "LINNET_TEST_FOLDER";
  void SetUp() override {
    if (!has_gloo()) GTEST_SKIP() << "this build has no Gloo";
    if (kThreadSanitizer) GTEST_SKIP() << "Gloo's threads are not instrumented";
    RowKinds::SetUp();
    if (!is_rank()) ::setenv(kFolder, folder_.path().c_str(), 1);
  }
  static std::string shared(const std::string& name) {
    return join_path(std::getenv(kFolder), name);
  }
  // A language model on the texts of the first process.
  Recipe decoder(std::vector<std::string> overrides = {},
                 const std::string& texts = "train*.txt") const {
    overrides.insert(overrides.begin(), {concat("data.train=[", shared(texts), "]"),
                                         concat("data.validation=[", shared("valid*.txt"), "]"),
                                         concat("data.test=[", shared("test*.txt"), "]")});
    return recipe(overrides);
  }
  static TrainOutcome train_on(Communicator& ranks, const Recipe& recipe, const std::string& name,
                               const std::string& resume = "auto", Device device = {}) {
    TrainOptions options;
    options.device = device;
    options.out = shared(name);
    options.resume = resume;
    options.ranks = &ranks;
    return train(recipe, options);
  }
  // The lines of a run's metrics.jsonl.
  static std::vector<JsonValue> metrics_of(const std::string& name) {
    const std::string path = join_path(shared(name), "metrics.jsonl");
    const std::string text = read_file(path);
    std::vector<JsonValue> lines;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      lines.push_back(parse_json(text.substr(begin, end - begin), path));
      begin = end + 1;
    }
    return lines;
  }
  // Two runs have the same lines, their losses within `tolerance`, relative.
  static void expect_same_metrics(const std::string& a, const std::string& b,
                                  double tolerance = 1e-5) {
    const std::vector<JsonValue> first = metrics_of(a), second = metrics_of(b);
    ASSERT_EQ(first.size(), second.size()) << a << " and " << b;
    for (size_t i = 0; i < first.size(); ++i) {
      const std::string place = concat(a, " and ", b, ", line ", i + 1);
      for (const char* key :
           {"step", "tokens", "scored_tokens", "scored_bytes", "scored_examples", "skipped"}) {
        const JsonValue* count = first[i].find(key);
        ASSERT_EQ(count == nullptr, second[i].find(key) == nullptr) << place << ": " << key;
        if (count == nullptr) continue;
        EXPECT_EQ(count->integer(), second[i].at(key).integer()) << place << ": " << key;
      }
      for (const char* key : {"loss", "nll", "grad_norm"}) {
        const JsonValue* value = first[i].find(key);
        ASSERT_EQ(value == nullptr, second[i].find(key) == nullptr) << place << ": " << key;
        if (value == nullptr) continue;
        EXPECT_NEAR(
            second[i].at(key).number(), value->number(),
            tolerance * (std::string_view(key) == "grad_norm" ? 10 : 1) * std::abs(value->number()))
            << place << ": " << key;
      }
    }
  }
};

}  // namespace linnet::test
