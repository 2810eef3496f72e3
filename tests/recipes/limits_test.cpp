// Sizes without bounds in a recipe are refused before anything is as large as they say.
#include <chrono>

#include "recipes/engine/environment.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

class Limits : public test::TinyRun {
 protected:
  // Of the first problem.
  std::string refusal(const std::vector<std::string>& changes) const {
    const auto start = std::chrono::steady_clock::now();
    const uint64_t before = peak_resident_memory_bytes();
    const std::string causes =
        test::causes_of<UsageError>([&] { run(recipe(changes), "refused"); });
    EXPECT_LT(peak_resident_memory_bytes() - before, uint64_t{256} << 20) << changes[0];
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_LT(seconds.count(), 5) << changes[0];
    EXPECT_FALSE(exists(out("refused"))) << changes[0];
    return causes.substr(0, causes.find_first_of(" \n", causes.find(' ') + 1));
  }
};

TEST_F(Limits, LayersAreCountedBeforeTheyAreMade) {
  EXPECT_EQ(refusal({"model.layers=1000000000"}), "out_of_range model.layers");
  EXPECT_EQ(
      refusal({"model.layers=1000000000", "model.attention=[{layers: 0-999999999, name: linear}]"}),
      "out_of_range model.layers");
  EXPECT_EQ(refusal({"model.layers=-1"}), "out_of_range model.layers");
}

TEST_F(Limits, UpdatesAreCountedBeforeTheyAreMade) {
  EXPECT_EQ(
      refusal({"train.tokens_per_update=null", "train.examples_per_update=1152921504606846976",
               "train.micro_batch=1152921504606846976"}),
      "out_of_range train.examples_per_update");
  EXPECT_EQ(refusal({"train.tokens_per_update=9223372036854775792",
                     "train.micro_batch=9223372036854775807"}),
            "out_of_range train.tokens_per_update");
}

TEST_F(Limits, MicroBatchesAreCountedBeforeTheyAreListed) {
  EXPECT_EQ(refusal({"train.tokens_per_update=null", "train.examples_per_update=68719476736",
                     "train.micro_batch=1"}),
            "out_of_range train.micro_batch");
  EXPECT_EQ(refusal({"train.tokens_per_update=160000000000"}), "out_of_range train.micro_batch");
}

}  // namespace
}  // namespace linnet
