// BigBird: candidates of random blocks, patterns of all blocks, stored and redrawn choices.
#include <set>

#include "attention/bigbird/bigbird.h"
#include "attention/conformance/subject.h"
#include "attention/define.h"
#include "attention/registry.h"
#include "core/yaml.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using conformance::Batch;
using conformance::check_options;
using conformance::random_batch;
using conformance::Result;
using conformance::Subject;
using test::close;
using test::message_of;
using test::same_bits;

std::set<int64_t> candidates(const BlockChoice& choice, int64_t row) {
  const BlockCandidates all = choice.candidates(row);
  std::set<int64_t> blocks;
  for (int64_t block = 1; block <= all.last; ++block) {
    if (std::count(std::begin(all.excluded), std::end(all.excluded), block) == 0) {
      blocks.insert(block);
    }
  }
  EXPECT_EQ(all.count(), static_cast<int64_t>(blocks.size()));
  return blocks;
}

TEST(Bigbird, CandidatesOfEveryRule) {
  // Ten blocks; block 9 is the last one.
  const BlockChoice ours{BlockRule::uniform, 99, 10, 2};
  EXPECT_FALSE(ours.everything());
  EXPECT_EQ(candidates(ours, 1), (std::set<int64_t>{3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(candidates(ours, 4), (std::set<int64_t>{1, 2, 6, 7, 8}));
  EXPECT_EQ(candidates(ours, 8), (std::set<int64_t>{1, 2, 3, 4, 5, 6}));
  // The released code draws from the first 2 r + 3, and leaves out the plan's end.
  const BlockChoice plan{BlockRule::released, 200, 10, 1};
  EXPECT_EQ(candidates(plan, 1), (std::set<int64_t>{3, 4}));
  EXPECT_EQ(candidates(plan, 5), (std::set<int64_t>{2, 3}));
  EXPECT_EQ(candidates(plan, 3), (std::set<int64_t>{1, 5}));
  EXPECT_EQ(candidates(plan, 12), (std::set<int64_t>{1, 2, 3, 4, 5}));
  EXPECT_TRUE((BlockChoice{BlockRule::released, 70, 10, 1}.everything()));
  EXPECT_FALSE((BlockChoice{BlockRule::released, 80, 10, 1}.everything()));
  // At three lengths, from blocks below token 1024.
  const BlockChoice special{BlockRule::released, 4096, 64, 3};
  EXPECT_EQ(candidates(special, 40).size(), 15u);
  EXPECT_EQ(candidates(special, 15).size(), 13u);  // without 14 and 15
  const BlockChoice repeats{BlockRule::released, 1024, 64, 3};
  EXPECT_EQ(candidates(repeats, 14).size(), 14u);  // its window among them
  EXPECT_EQ(candidates(repeats, 12).size(), 11u);
}

TEST(Bigbird, ChoicesAreDifferentCandidatesAndEvenlySpread) {
  const BlockChoice choice{BlockRule::uniform, 120, 10, 3};
  const RandomKey key{5, 0, 1};
  for (int64_t row = 1; row <= choice.rows(); ++row) {
    const std::set<int64_t> allowed = candidates(choice, row);
    std::map<int32_t, int> counts;
    constexpr int kDraws = 2000;
    for (int64_t n = 0; n < kDraws; ++n) {
      float draws[3];
      int32_t chosen[3];
      for (int64_t r = 0; r < 3; ++r) draws[r] = block_draw(key, kDraws, 3, 3 * n + r);
      choice.choose(row, draws, chosen);
      const std::set<int32_t> different(std::begin(chosen), std::end(chosen));
      ASSERT_EQ(different.size(), 3u);
      for (const int32_t block : different) {
        ASSERT_TRUE(allowed.contains(block)) << row << ": " << block;
        ++counts[block];
      }
    }
    const double expected = 3.0 * kDraws / static_cast<double>(allowed.size());
    for (const int64_t block : allowed) {
      EXPECT_TRUE(std::abs(counts[static_cast<int32_t>(block)] - expected) <
                  6 * std::sqrt(expected))
          << row << ": " << block;
    }
  }
}

Subject subject_of(const std::string& parameters, uint64_t seed = 1) {
  return Subject(find_mechanism("bigbird"), parse_yaml(parameters, "test"),
                 check_options(Form::noncausal, 8), DType::f64, seed);
}

// r = blocks - 5 takes all that the middle rows may: they read everything then, as the first and
// the last block always do.
TEST(Bigbird, AllBlocksAreFullAttention) {
  const Subject sparse = subject_of("{block: 4, random: 3}");
  const Subject full(find_mechanism("softmax"), ConfigNode::map(),
                     check_options(Form::noncausal, 8), DType::f64, 1);
  const Batch batch = random_batch(Form::noncausal, 2, 31, 1, 16, 1);  // 8 blocks
  const Tensor a = sparse.run(batch).y, b = full.run(batch).y;
  const auto agree = [&](int64_t begin, int64_t end) {
    return close(tokens_of(a, begin, end), tokens_of(b, begin, end), 1e-13);
  };
  EXPECT_TRUE(agree(0, 4));
  EXPECT_TRUE(agree(8, 24));
  EXPECT_TRUE(agree(28, 31));
  EXPECT_FALSE(agree(4, 8));  // it lacks one of four
}

TEST(Bigbird, PatternsAreStoredGivenAndRedrawn) {
  const Batch batch = random_batch(Form::noncausal, 1, 60, 1, 16, 1);
  const Subject kept = subject_of("{block: 4, random: 2}");
  const Result first = kept.run(batch), training = kept.run(batch, {}, true);
  EXPECT_TRUE(same_bits(first.used.choices.at("blocks"), training.used.choices.at("blocks")));
  EXPECT_TRUE(first.used.draws.empty());
  EXPECT_EQ(kept.parameters().buffers().size(), 1u);

  const Subject redrawn = subject_of("{block: 4, random: 2, resample: step}");
  EXPECT_TRUE(same_bits(redrawn.run(batch).y, first.y));
  const Result step = redrawn.run(batch, {}, true);
  EXPECT_FALSE(same_bits(step.used.choices.at("blocks"), first.used.choices.at("blocks")));
  EXPECT_TRUE(same_bits(redrawn.run(batch, {}, true).y, step.y));

  // The blocks of a run, given to another that would choose others.
  CallDraws given;
  given.given_choices["blocks"] = step.used.choices.at("blocks");
  EXPECT_TRUE(same_bits(kept.run(batch, {}, false, given).y, step.y));
  given.given_choices["blocks"] = Tensor::full({2, 13, 2}, 15, DType::i32);
  EXPECT_NE(message_of<UsageError>([&] {
              kept.run(batch, {}, false, given);
            }).find("there is no block 15 among 15"),
            std::string::npos);
}

TEST(Bigbird, PresetsAndWhatIsRefused) {
  const auto read = [](const std::string& preset) {
    return parse_config<BigbirdParams>(apply_preset(parse_yaml("{preset: " + preset + "}", "test"),
                                                    find_mechanism("bigbird").presets));
  };
  MixerOptions options;
  options.width = 512;
  options.heads = 8;
  EXPECT_EQ(read("survey").block_size(options), 16);
  options.heads = 16;
  EXPECT_EQ(read("survey").block_size(options), 8);
  EXPECT_EQ(read("survey").random, 1);
  EXPECT_EQ(read("leapformer").block_size(options), 64);
  EXPECT_EQ(read("lavo").random, 3);
  EXPECT_THROW(read("original").length(options), UsageError);

  EXPECT_NE(message_of<UsageError>([] {
              subject_of("{max_length: 40}").run(random_batch(Form::noncausal, 1, 41, 1, 16, 1));
            }).find("raise max_length"),
            std::string::npos);
  Batch packed = random_batch(Form::noncausal, 1, 6, 1, 16, 1);
  packed.segments = Tensor::zeros({1, 6}, DType::i32);
  EXPECT_THROW(subject_of("{}").run(packed), UsageError);
}

}  // namespace
}  // namespace linnet
