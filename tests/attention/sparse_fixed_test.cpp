// The fixed sparse pattern: sizes within the survey's budget, lists, refused options.
#include "attention/sparse_fixed/sparse_fixed.h"
#include <gtest/gtest.h>
#include "attention/registry.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/common/token_slices.h"
#include "attention/define.h"
#include "attention/sparse_fixed/fixed_lists.h"
#include "core/yaml.h"
#include "tests/attention/made_mixer.h"
#include "tests/worst.h"

namespace linnet {
namespace {

SparseFixedParams params_of(const std::string& text) {
  return parse_config<SparseFixedParams>(
      apply_preset(parse_yaml(text, "test"), find_mechanism("sparse_fixed").presets));
}

TEST(SparseFixed, SizesKeepToTheSurveysBudget) {
  const auto sizes = [](int64_t head_width, int64_t length) {
    MixerOptions options;
    options.width = 4 * head_width;
    options.heads = 4;
    options.max_length = length;
    const SparseFixedParams::Sizes found = params_of("{preset: survey}").sizes(options);
    return std::pair(found.block, found.columns);
  };
  EXPECT_EQ(sizes(64, 257), std::pair(64L, 16L));
  EXPECT_EQ(sizes(64, 512), std::pair(64L, 9L));
  EXPECT_EQ(sizes(64, 1024), std::pair(64L, 4L));
  EXPECT_EQ(sizes(64, 2048), std::pair(64L, 2L));
  EXPECT_EQ(sizes(64, 4096), std::pair(64L, 1L));
  EXPECT_EQ(sizes(64, 8192), std::pair(128L, 0L));
  EXPECT_EQ(sizes(32, 1024), std::pair(32L, 1L));
  EXPECT_THROW(sizes(64, 0), UsageError);
  MixerOptions options;
  options.width = 64;
  options.heads = 1;
  EXPECT_THROW(params_of("{block: 4, columns: 5}").sizes(options), UsageError);
  EXPECT_THROW(params_of("{block: 4, columns: 2, column_sets: 2}").sizes(options), UsageError);
  EXPECT_THROW(params_of("{block: 4, columns: 2, column_sets: 3, layout: original}").sizes(options),
               UsageError);
  EXPECT_EQ(params_of("{preset: survey}").scale, 1.0);
  EXPECT_TRUE(params_of("{preset: survey}").dup_own_block);
  EXPECT_EQ(params_of("{preset: original}").sizes(options).columns, 8);
}

// How often each key stands in the list of a query, against the rule.
TEST(SparseFixed, ListsHoldTheBlockAndTheColumns) {
  const int64_t T = 23, block = 5;
  for (const bool first : {true, false}) {
    for (const bool twice : {true, false}) {
      const Columns columns{block, 2, first, first ? 1 : 2};
      const auto check = [&](int64_t head, int64_t i, bool causal, int64_t length,
                             const auto& key_of) {
        std::vector<int64_t> found(static_cast<size_t>(T), 0);
        for (int64_t place = 0; place < length; ++place) {
          const int32_t key = key_of(place);
          ASSERT_LT(key, T);
          if (key >= 0) ++found[static_cast<size_t>(key)];
        }
        for (int64_t j = 0; j < T; ++j) {
          const int64_t inside = j % block;
          const bool column = first       ? inside == 0 || inside == 4
                              : head == 1 ? inside == 1 || inside == 2
                                          : inside >= 3;
          const bool own = j / block == i / block;
          int64_t expected = own ? 1 : 0;
          if (column && (!own || twice)) ++expected;
          if (causal && j > i) expected = 0;
          EXPECT_EQ(found[static_cast<size_t>(j)], expected) << i << " " << j;
        }
      };
      for (const int64_t head : {0, 1, 2}) {
        const BlockwiseLists blocks{columns, T, twice};
        for (int64_t i = 0; i < T; ++i) {
          check(head, i, false, blocks.length(),
                [&](int64_t place) { return blocks.key(head, i / block, place); });
        }
        for (const int64_t group : {block, int64_t{1}}) {
          const BlockwiseLists causal{columns, T, twice, true, group};
          for (int64_t i = 0; i < T; ++i) {
            check(head, i, true, causal.length(), [&](int64_t place) {
              return causal.bias(head, i, place) == 0 ? causal.key(head, i / group, place) : -1;
            });
          }
        }
        // The last eight queries, as after cached keys.
        const DocumentLists causal{columns, T - 8, 8, true, twice};
        for (int64_t t = 0; t < 8; ++t) {
          check(head, T - 8 + t, true, causal.length(),
                [&](int64_t place) { return causal.key(nullptr, head, t, place); });
        }
      }
    }
  }
}

// Where a row begins inside a document without a KV cache, blocks are those of the document: the
// result equals that of the whole document with the tokens before masked.
TEST(SparseFixed, RowsThatBeginInsideADocumentKeepItsBlocks) {
  constexpr int64_t kBefore = 13, kTokens = 60;
  MixerOptions options;
  options.width = 8;
  options.heads = 1;
  options.form = Form::causal;
  options.max_length = kTokens;
  const test::MadeMixer mixer("sparse_fixed", "{block: 32, columns: 2}", options);
  std::vector<Tensor> x;
  for (const char* name : {"q", "k", "v"})
    x.push_back(test::random_tensor({1, kTokens, 1, 8}, name));
  const auto mixed = [&](int64_t from, const MixerContext& context) {
    std::vector<Variable> part;
    for (const Tensor& tensor : x) part.emplace_back(tokens_of(tensor, from, kTokens));
    return mixer.mix(part[0], part[1], part[2], context).y.value();
  };
  std::vector<uint8_t> valid(kTokens, 1);
  std::fill_n(valid.begin(), kBefore, 0);
  std::vector<int32_t> positions(kTokens - kBefore);
  std::iota(positions.begin(), positions.end(), kBefore);
  MixerContext whole, inside;
  whole.key_mask = Tensor::from(valid, {1, kTokens});
  inside.positions = Tensor::from(positions, {1, kTokens - kBefore});
  const auto expected = tokens_of(mixed(0, whole), kBefore, kTokens).to_vector<double>();
  for (const int64_t time_offset : {kBefore, int64_t{0}}) {
    inside.place.time_offset = time_offset;
    const auto got = mixed(kBefore, inside).to_vector<double>();
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      test::keep_worst(worst, std::abs(got[i] - expected[i]));
    }
    EXPECT_LE(worst, 1e-12) << time_offset;
  }
}

}  // namespace
}  // namespace linnet
