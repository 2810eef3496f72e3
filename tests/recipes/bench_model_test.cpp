// bench model: speed and memory of whole models on random tokens.
#include "recipes/engine/bench/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/memory_limit.h"
#include "tests/error_helpers.h"
#include "tests/recipes/row_kinds.h"

namespace linnet {
namespace {

class BenchModel : public test::RowKinds {
 protected:
  static RecipePoint point(const Recipe& recipe) { return {"", recipe.resolved}; }
  static ModelBench bench(const Recipe& recipe, ModelBenchOptions options) {
    options.runs = 1;
    const std::vector<ModelBench> results = bench_model({point(recipe)}, options);
    EXPECT_EQ(results.size(), 1U);
    return results.at(0);
  }
  static ModelBenchOptions options(BenchMode mode, std::optional<int64_t> batch) {
    ModelBenchOptions options;
    options.mode = mode;
    options.lengths = {16};
    options.batch = batch;
    return options;
  }
};

TEST_F(BenchModel, MeasuresEveryTaskWithoutItsData) {
  for (const auto& [name, recipe] : row_kinds()) {
    SCOPED_TRACE(name);
    for (const BenchMode mode : {BenchMode::train, BenchMode::inference}) {
      const ModelBench result = bench(recipe, options(mode, 2));
      EXPECT_EQ(result.recipe, recipe.name);
      EXPECT_EQ(result.length, 16);
      EXPECT_EQ(result.batch, 2);
      EXPECT_GT(result.seconds, 0);
      EXPECT_EQ(result.rate(), 1 / result.seconds);
      EXPECT_GT(result.parameters, 0);
      // Inference holds weights alone, training the gradients and two moments besides.
      const auto weights = static_cast<size_t>(4 * result.parameters);
      EXPECT_GT(result.peak_bytes, mode == BenchMode::train ? 4 * weights : weights);
    }
  }
  const Recipe lost = recipe({"data.train=[nowhere.txt]"});
  EXPECT_TRUE(bench(lost, options(BenchMode::train, 1)).fits());
}

TEST_F(BenchModel, DoublesTheBatchUntilMemoryEnds) {
  for (const BenchMode mode : {BenchMode::train, BenchMode::inference}) {
    ModelBenchOptions limited = options(mode, {});
    limited.cpu_memory_bytes = size_t{1} << 20;
    const ModelBench found = bench(recipe(), limited);
    ASSERT_TRUE(found.fits());
    EXPECT_GT(found.batch, 1);
    EXPECT_EQ(found.batch & (found.batch - 1), 0) << found.batch;
    limited.batch = found.batch;
    const ModelBench again = bench(recipe(), limited);
    EXPECT_TRUE(again.fits());
    EXPECT_LE(again.peak_bytes, size_t{1} << 20);
    limited.batch = 2 * found.batch;
    EXPECT_FALSE(bench(recipe(), limited).fits());
    limited.batch.reset();
    limited.cpu_memory_bytes = size_t{1} << 10;
    EXPECT_FALSE(bench(recipe(), limited).fits()) << "not even the weights";
  }
  // The limit ends with its bench.
  EXPECT_NO_THROW(Tensor::zeros({1 << 20}, DType::f32));
}

TEST_F(BenchModel, MemoryGrowsWithTheLength) {
  ModelBenchOptions lengths = options(BenchMode::train, 1);
  lengths.lengths = {128, 256, 512};
  lengths.runs = 1;
  std::vector<std::string> told;
  const auto results = bench_model({point(classifier())}, lengths,
                                   [&](const std::string& what, int64_t, int64_t total) {
                                     told.push_back(what);
                                     EXPECT_EQ(total, 3);
                                   });
  ASSERT_EQ(results.size(), 3U);
  const double slope = static_cast<double>(results[2].peak_bytes - results[1].peak_bytes) /
                       static_cast<double>(results[1].peak_bytes - results[0].peak_bytes);
  EXPECT_NEAR(slope, 2, 0.1);  // attention keeps no weight for each pair of tokens
  EXPECT_EQ(told.front(), "the recipe at length 128, batch 1");
}

TEST_F(BenchModel, SaysWhatIsPublished) {
  const Recipe compared =
      recipe({"published={table: leapformer T2, task: lra_throughput, model: cosFormer}"});
  const ModelBench result = bench(compared, options(BenchMode::inference, 1));
  ASSERT_TRUE(result.published.has_value());
  EXPECT_EQ(result.published->model, "cosFormer");
  EXPECT_EQ(result.precision, "f32");
}

TEST_F(BenchModel, RefusesAModelThatTheLengthIsTooLongFor) {
  EXPECT_EQ(test::causes_of<UsageError>([&] {
              bench(recipe({"model.positions=learned", "model.max_positions=8"}),
                    options(BenchMode::train, 1));
            }),
            "out_of_range data.context");
}

TEST(CpuMemoryLimit, EndsAllocationsBeyondIt) {
  const size_t held = allocated_bytes({});
  {
    const CpuMemoryLimit limit(held + 4096);
    const Tensor fits = Tensor::zeros({1024}, DType::f32);
    try {
      Tensor::zeros({1}, DType::f32);
      FAIL() << "nothing is left";
    } catch (const OutOfMemory& error) {
      EXPECT_EQ(error.requested, 4U);
      EXPECT_EQ(error.free, 0U);
    }
  }
  EXPECT_NO_THROW(Tensor::zeros({2048}, DType::f32));
}

}  // namespace
}  // namespace linnet
