// LAVO in one pass against the plain path of primitives: outputs, carried sums and every gradient.
#include "attention/lavo/one_pass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

#include "attention/mechanism.h"
#include "core/error.h"
#include "tests/attention/lavo_by_primitives.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using test::close;
using test::random_tensor;

struct Setting {
  const char* name;
  int64_t window, B, T, H, rank, d;
  int64_t bias_heads = 0;
  bool local_only = false;
  std::vector<int32_t> segments = {};
  int64_t time_offset = 0;
};

// Documents of 70, 5 and 85 tokens.
std::vector<int32_t> three_documents() {
  std::vector<int32_t> segments(160, 2);
  std::fill_n(segments.begin(), 70, 0);
  std::fill_n(segments.begin() + 70, 5, 1);
  return segments;
}

const std::vector<Setting> kSettings = {
    {"whole tiles", 16, 1, 192, 2, 64, 64, 2},
    {"one token", 16, 1, 1, 2, 3, 5, 2},
    {"shorter than the window", 16, 2, 7, 2, 5, 8, 1, true},
    {"odd sizes", 7, 2, 131, 2, 5, 9, 2},
    {"windows of one token", 1, 1, 70, 2, 8, 8, 2},
    {"one key more than a block", 18, 1, 150, 1, 6, 16, 1, true},
    {"widest window", 64, 1, 201, 1, 4, 8, 1},
    {"no bias, a window already begun", 16, 2, 90, 2, 20, 24, 0, true, {}, 13},
    {"a window that ends at once", 64, 1, 140, 1, 4, 8, 1, false, {}, 63},
    {"documents longer than a tile", 20, 1, 160, 2, 8, 16, 2, false, three_documents()},
    {"documents",
     4,
     2,
     10,
     2,
     8,
     8,
     2,
     true,
     {0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4},
     2},
};

class OnePass : public testing::TestWithParam<Setting> {};
INSTANTIATE_TEST_SUITE_P(Lavo, OnePass, testing::ValuesIn(kSettings),
                         [](const testing::TestParamInfo<Setting>& info) {
                           std::string name = info.param.name;
                           for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
                           return name;
                         });

LavoPassContext pass_context(const Setting& s) {
  LavoPassContext context;
  context.options = {s.window, 0.6, s.local_only};
  if (!s.segments.empty()) context.segments = Tensor::from(s.segments, {s.B, s.T});
  context.place.time_offset = s.time_offset;
  return context;
}

LavoPassVariables make_inputs(const Setting& s, DType dtype) {
  const Shape shape{s.B, s.T, s.H, s.d};
  LavoPassVariables x{Variable(random_tensor(shape, "q", dtype), true),
                      Variable(random_tensor(shape, "k", dtype), true),
                      Variable(random_tensor(shape, "v", dtype), true),
                      Variable(random_tensor({s.H, s.rank, s.d}, "basis", dtype), true),
                      {}};
  if (s.bias_heads > 0) {
    x.bias = Variable(random_tensor({s.bias_heads, 2 * s.window - 1}, "bias", dtype), true);
  }
  return x;
}

void differentiate(const LavoPassResult& result, DType dtype) {
  const auto seed = [dtype](const Variable& x, const char* name) {
    return random_tensor(x.shape(), name, dtype);
  };
  backward({result.y, result.carry.completed, result.carry.partial},
           {seed(result.y, "dy"), seed(result.carry.completed, "dcompleted"),
            seed(result.carry.partial, "dpartial")});
}

void expect_plain_path(const Setting& s, DType dtype, double tolerance) {
  const LavoPassVariables x = make_inputs(s, dtype), expected_x = make_inputs(s, DType::f64);
  const LavoPassResult result = lavo_pass(x, pass_context(s));
  const LavoPassResult expected = test::lavo_by_primitives(expected_x, pass_context(s));
  EXPECT_TRUE(close(result.y.value(), expected.y.value(), tolerance));
  EXPECT_TRUE(close(result.carry.completed.value(), expected.carry.completed.value(),
                    tolerance * static_cast<double>(s.T)));
  EXPECT_TRUE(close(result.carry.partial.value(), expected.carry.partial.value(),
                    tolerance * static_cast<double>(s.window)));
  EXPECT_EQ(result.carry.counts.to_vector<int64_t>(), expected.carry.counts.to_vector<int64_t>());
  differentiate(result, dtype);
  differentiate(expected, DType::f64);
  const auto gradients = [&](const Variable& own, const Variable& other, const char* name) {
    double largest = 1;
    for (const double g : other.grad().to_vector<double>())
      largest = std::max(largest, std::abs(g));
    EXPECT_TRUE(close(own.grad(), other.grad(), tolerance * largest)) << "gradient of " << name;
  };
  gradients(x.q, expected_x.q, "q");
  gradients(x.k, expected_x.k, "k");
  gradients(x.v, expected_x.v, "v");
  gradients(x.basis, expected_x.basis, "the basis");
  if (s.bias_heads > 0) gradients(x.bias, expected_x.bias, "the bias");
}

TEST_P(OnePass, IsThePlainPathInDouble) {
  expect_plain_path(GetParam(), DType::f64, 1e-12);
}

TEST_P(OnePass, IsThePlainPathInSinglePrecision) {
  expect_plain_path(GetParam(), DType::f32, 2e-5);
}

TEST(OnePassOfLavo, SameBitsForAnyNumberOfThreads) {
  const Setting& s = kSettings[0];
  std::vector<Tensor> bits[2];
  for (const int threads : {1, 3}) {
    const int before = thread_count();
    set_thread_count(threads);
    const LavoPassVariables x = make_inputs(s, DType::f32);
    const LavoPassResult result = lavo_pass(x, pass_context(s));
    differentiate(result, DType::f32);
    set_thread_count(before);
    bits[threads / 2] = {result.y.value(), x.q.grad(),     x.k.grad(),
                         x.v.grad(),       x.basis.grad(), x.bias.grad()};
  }
  for (size_t i = 0; i < bits[0].size(); ++i) EXPECT_TRUE(test::same_bits(bits[0][i], bits[1][i]));
}

TEST(OnePassOfLavo, SameBitsWithoutGradients) {
  for (const Setting& s : kSettings) {
    const LavoPassVariables x = make_inputs(s, DType::f32);
    const LavoPassResult recorded = lavo_pass(x, pass_context(s));
    const NoGrad off;
    const LavoPassResult result = lavo_pass(x, pass_context(s));
    EXPECT_TRUE(test::same_bits(result.y.value(), recorded.y.value())) << s.name;
  }
}

TEST(OnePassOfLavo, RefusesWhatItCannotDo) {
  Setting s = kSettings[1];
  const int before = thread_count();
  set_thread_count(2);
  const auto fits = [](const Setting& setting) {
    return lavo_pass_fits(make_inputs(setting, DType::f32), pass_context(setting));
  };
  EXPECT_TRUE(fits({"", 64, 1, 1, 2, 3, 5}));
  EXPECT_FALSE(fits({"", 65, 1, 1, 2, 3, 5}));
  EXPECT_FALSE(fits({"", 64, 1, 1, 1, 3, 5}));
  LavoPassContext drops = pass_context(s);
  drops.options.dropout = 0.1;
  EXPECT_TRUE(lavo_pass_fits(make_inputs(s, DType::f32), pass_context(s)));
  EXPECT_FALSE(lavo_pass_fits(make_inputs(s, DType::f32), drops));
  EXPECT_THROW(lavo_pass(make_inputs(s, DType::f32), drops), Error);
  set_thread_count(before);
  s.window = 65;
  EXPECT_THROW(lavo_pass(make_inputs(s, DType::f32), pass_context(s)), Error);
  LavoPassVariables narrow = make_inputs(kSettings[1], DType::f32);
  narrow.bias = Variable(random_tensor({2, 30}, "bias", DType::f32));
  EXPECT_THROW(lavo_pass(narrow, pass_context(kSettings[1])), Error);
  LavoPassVariables short_keys = make_inputs(kSettings[0], DType::f32);
  short_keys.k = Variable(random_tensor({1, 191, 2, 64}, "k", DType::f32));
  EXPECT_THROW(lavo_pass(short_keys, pass_context(kSettings[0])), Error);
  LavoPassContext masked = pass_context(kSettings[1]);
  masked.mask = Tensor::full({1, 1}, 1, DType::u8);
  EXPECT_THROW(lavo_pass(make_inputs(kSettings[1], DType::f32), masked), Error);
}

}  // namespace
}  // namespace linnet
