// NormAttention's outputs after its norm.
#include <gtest/gtest.h>

#include "attention/conformance/subject.h"
#include "attention/registry.h"
#include "core/yaml.h"

namespace linnet {
namespace {

using namespace conformance;

// The root mean square of every row of `width` elements is `expected`.
void expect_root_mean_square(const char* parameters, int64_t width, double expected) {
  const Subject subject(find_mechanism("transnormer_norm"), parse_yaml(parameters, "parameters"),
                        check_options(Form::causal, 8), DType::f64);
  const Batch batch = random_batch(Form::causal, 2, 20, 1, 16, 1);
  const std::vector<double> context = subject.run(batch).context.to_vector<double>();
  for (size_t row = 0; row < context.size(); row += static_cast<size_t>(width)) {
    double square = 0;
    for (size_t c = row; c < row + static_cast<size_t>(width); ++c)
      square += context[c] * context[c];
    const double found = std::sqrt(square / static_cast<double>(width));
    EXPECT_TRUE(std::abs(found - expected) <= 1e-12) << parameters << " " << row << ": " << found;
  }
}

TEST(TransnormerNorm, RowsHaveTheRootMeanSquareOfTheirAxis) {
  expect_root_mean_square("{}", 16, 1);
  expect_root_mean_square("{norm_axis: head}", 8, 1);
  expect_root_mean_square("{preset: survey}", 8, std::sqrt(2.0));
}

}  // namespace
}  // namespace linnet
