// Associative recall and copying: exact, and a pure function of seed, split and index.
#include "data/sequences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "core/yaml.h"
#include "data/inspect.h"
#include "data/registry.h"
#include "tests/data/temporary_folder.h"

namespace linnet {
namespace {

using testing::HasSubstr;

DataConfig config_of(const std::string& section) {
  return parse_config<DataConfig>(parse_yaml(section, "data.yaml"));
}

SequenceDataset sequences(const std::string& section) {
  return make_sequences(config_of(section));
}

std::vector<int64_t> first_ids(int64_t count) {
  std::vector<int64_t> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), int64_t{0});
  return ids;
}

// How often each outcome was seen is within five standard deviations of its probability.
void expect_frequencies(const std::map<std::vector<int32_t>, int64_t>& seen,
                        const std::map<std::vector<int32_t>, double>& probabilities) {
  double total = 0;
  for (const auto& outcome : seen) total += static_cast<double>(outcome.second);
  for (const auto& [outcome, count] : seen)
    EXPECT_TRUE(probabilities.contains(outcome)) << testing::PrintToString(outcome) << count;
  for (const auto& [outcome, p] : probabilities) {
    const auto found = seen.find(outcome);
    const double count = found == seen.end() ? 0 : static_cast<double>(found->second);
    EXPECT_NEAR(count, total * p, 5 * std::sqrt(total * p * (1 - p)))
        << testing::PrintToString(outcome);
  }
}

TEST(Recall, EveryKeyIsAskedForOnceAndItsTargetIsItsValue) {
  const SequenceDataset data =
      sequences("{kind: recall, pairs: 5, vocabulary: 31, context: 40, seed: 7}");
  EXPECT_EQ(data.vocabulary_size, 31);
  EXPECT_EQ(data.scored, 5);
  const Batch batch = batch_in_order(data, Split::train, 0, 300);
  EXPECT_EQ(batch.B, 300);
  EXPECT_EQ(batch.T, 40);
  EXPECT_EQ(batch.target_count, 1500);
  std::set<int32_t> all_keys, all_values, fillers;
  for (size_t row = 0; row < 300; ++row) {
    const int32_t* tokens = batch.tokens.data() + row * 40;
    const int32_t* targets = batch.targets.data() + row * 40;
    std::map<int32_t, int32_t> value_of;
    std::set<int32_t> values;
    for (size_t i = 0; i < 10; i += 2) {
      value_of[tokens[i]] = tokens[i + 1];
      values.insert(tokens[i + 1]);
      all_keys.insert(tokens[i]);
      all_values.insert(tokens[i + 1]);
    }
    ASSERT_EQ(value_of.size(), 5U) << row;
    ASSERT_EQ(values.size(), 5U) << row;
    std::set<int32_t> asked;
    for (size_t i = 0; i < 40; ++i) {
      if (targets[i] == kNotScored) {
        if (i >= 10) fillers.insert(tokens[i]);
        continue;
      }
      ASSERT_TRUE(i >= 10 && i % 2 == 0) << row << " " << i;
      ASSERT_TRUE(value_of.contains(tokens[i])) << row << " " << i;
      EXPECT_EQ(targets[i], value_of.at(tokens[i]));
      asked.insert(tokens[i]);
    }
    EXPECT_EQ(asked.size(), 5U) << row;
  }
  // Keys are 1 to 14, values 15 to 30, what is not scored is any id.
  EXPECT_EQ(*all_keys.begin(), 1);
  EXPECT_EQ(all_keys.size(), 14U);
  EXPECT_EQ(*all_values.begin(), 15);
  EXPECT_EQ(all_values.size(), 16U);
  EXPECT_EQ(fillers.size(), 31U);
}

// Slots of each pair of an example, in the order of the pairs.
std::map<std::vector<int32_t>, int64_t> slots_seen(const SequenceDataset& data, int64_t examples) {
  std::map<std::vector<int32_t>, int64_t> seen;
  const Batch batch = batch_in_order(data, Split::test, 0, examples);
  for (int64_t row = 0; row < examples; ++row) {
    const int32_t* tokens = batch.tokens.data() + row * data.length;
    const int32_t* targets = batch.targets.data() + row * data.length;
    std::vector<int32_t> slots;
    for (int64_t pair = 0; pair < data.scored; ++pair) {
      for (int64_t at = 2 * data.scored; at < data.length; ++at) {
        if (targets[at] != kNotScored && tokens[at] == tokens[2 * pair])
          slots.push_back(static_cast<int32_t>(at / 2 - data.scored));
      }
    }
    ++seen[slots];
  }
  return seen;
}

TEST(Recall, SlotsAreDrawnWithoutReplacementByThePowerLaw) {
  const int64_t examples = 60000;
  for (const double alpha : {0.01, 1.0, 2.5}) {
    const auto data = [&](int64_t pairs, int64_t context) {
      return sequences(concat("{kind: recall, vocabulary: 64, alpha: ", alpha, ", pairs: ", pairs,
                              ", context: ", context, ", test_examples: ", examples, "}"));
    };
    const auto probabilities = [alpha](int slots) {
      std::vector<double> p;
      for (int g = 0; g < slots; ++g) p.push_back(std::pow(g + 1, alpha - 1));
      const double sum = std::accumulate(p.begin(), p.end(), 0.0);
      for (double& each : p) each /= sum;
      return p;
    };
    std::map<std::vector<int32_t>, double> one, two;
    std::vector<double> p = probabilities(5);
    for (int32_t g = 0; g < 5; ++g) one[{g}] = p[static_cast<size_t>(g)];
    expect_frequencies(slots_seen(data(1, 12), examples), one);
    p = probabilities(3);
    for (int32_t g = 0; g < 3; ++g) {
      for (int32_t h = 0; h < 3; ++h) {
        const double first = p[static_cast<size_t>(g)], second = p[static_cast<size_t>(h)];
        if (g != h) two[{g, h}] = first * second / (1 - first);
      }
    }
    expect_frequencies(slots_seen(data(2, 10), examples), two);
  }
}

TEST(SequenceDraws, DistinctIdsInEveryOrderAreEquallyLikely) {
  std::map<std::vector<int32_t>, int64_t> seen;
  std::map<std::vector<int32_t>, double> probabilities;
  for (int64_t i = 0; i < 24000; ++i) ++seen[SequenceDraws(3, Split::train, i).distinct(5, 4, 2)];
  for (int32_t a = 5; a < 9; ++a) {
    for (int32_t b = 5; b < 9; ++b) {
      if (a != b) probabilities[{a, b}] = 1.0 / 12;
    }
  }
  expect_frequencies(seen, probabilities);
  std::vector<int32_t> all = SequenceDraws(3, Split::train, 1).distinct(2, 50, 50);
  std::sort(all.begin(), all.end());
  for (int32_t i = 0; i < 50; ++i) EXPECT_EQ(all[static_cast<size_t>(i)], 2 + i);
}

TEST(Copy, TargetsAreTheSymbolsAgain) {
  const SequenceDataset data = sequences("{kind: copy, vocabulary: 6, context: 10}");
  const Batch batch = batch_in_order(data, Split::validation, 0, 100);
  EXPECT_EQ(batch.target_count, 500);
  std::set<int32_t> symbols;
  for (size_t row = 0; row < 100; ++row) {
    const int32_t* tokens = batch.tokens.data() + row * 10;
    const int32_t* targets = batch.targets.data() + row * 10;
    symbols.insert(tokens, tokens + 5);
    EXPECT_EQ(tokens[5], 0);
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(targets[i], kNotScored);
      EXPECT_EQ(targets[5 + i], tokens[i]);
      if (i == 4) continue;
      EXPECT_EQ(tokens[6 + i], tokens[i]);
    }
  }
  EXPECT_EQ(symbols, (std::set<int32_t>{1, 2, 3, 4, 5}));
}

TEST(Sequences, AreAPureFunctionOfSeedSplitAndIndex) {
  for (const std::string kind : {"recall", "copy"}) {
    const auto with_seed = [&](int64_t seed) {
      return sequences(concat("{kind: ", kind, ", vocabulary: 40, context: 32, seed: ", seed, "}"));
    };
    const SequenceDataset data = with_seed(1);
    const Batch whole = batch_in_order(data, Split::train, 0, 50);
    for (int64_t i = 0; i < 50; ++i) {
      const std::vector<int64_t> one = {i};
      const Batch alone = batch_of(data, Split::train, one);
      EXPECT_TRUE(
          std::equal(alone.tokens.begin(), alone.tokens.end(), whole.tokens.begin() + i * 32))
          << kind << i;
      EXPECT_TRUE(
          std::equal(alone.targets.begin(), alone.targets.end(), whole.targets.begin() + i * 32))
          << kind << i;
    }
    EXPECT_EQ(whole.example_ids, first_ids(50));
    std::set<std::vector<int32_t>> different = {whole.tokens};
    std::set<std::string> prints = {data.fingerprint(Split::train)};
    EXPECT_EQ(with_seed(1).fingerprint(Split::train), data.fingerprint(Split::train));
    for (const Split split : {Split::validation, Split::test}) {
      different.insert(batch_in_order(data, split, 0, 50).tokens);
      prints.insert(data.fingerprint(split));
    }
    different.insert(batch_in_order(with_seed(2), Split::train, 0, 50).tokens);
    prints.insert(with_seed(2).fingerprint(Split::train));
    EXPECT_EQ(different.size(), 4U) << kind;
    EXPECT_EQ(prints.size(), 4U) << kind;
  }
}

TEST(Sequences, AnEpochOfTrainingHasEveryExampleOnceInAnotherOrder) {
  const SequenceDataset data =
      sequences("{kind: recall, vocabulary: 40, context: 32, train_examples: 30}");
  const Batch two = training_batch(data, 5, 0, 60);
  std::vector<int64_t> first(two.example_ids.begin(), two.example_ids.begin() + 30);
  std::vector<int64_t> second(two.example_ids.begin() + 30, two.example_ids.end());
  EXPECT_NE(first, second);
  EXPECT_NE(first, first_ids(30));
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(first, first_ids(30));
  EXPECT_EQ(second, first_ids(30));
  const Batch part = training_batch(data, 5, 25, 10);
  EXPECT_TRUE(std::equal(part.tokens.begin(), part.tokens.end(), two.tokens.begin() + 25 * 32));
  EXPECT_NE(training_batch(data, 6, 0, 30).example_ids, training_batch(data, 5, 0, 30).example_ids);
}

TEST(Sequences, OptionsThatDoNotFitAreRefused) {
  const auto refusal = [](const std::string& section) {
    return test::message_of<UsageError>([&] { config_of(section); });
  };
  EXPECT_THAT(refusal("{kind: recall, context: 63}"), HasSubstr("even data.context, got 63"));
  EXPECT_THAT(refusal("{kind: copy, context: 5}"), HasSubstr("even data.context, got 5"));
  EXPECT_THAT(refusal("{kind: recall, pairs: 17, context: 64}"),
              HasSubstr("17 pairs need a data.context of at least 68, got 64"));
  EXPECT_THAT(refusal("{kind: recall, pairs: 8, vocabulary: 17, context: 64}"),
              HasSubstr("data.vocabulary 17 7 are keys: raise it to at least 18"));
  EXPECT_THAT(refusal("{kind: copy, path: here}"), HasSubstr("leave out data.path"));
  EXPECT_THAT(refusal("{kind: copy, pairs: 4}"), HasSubstr("belongs to kind recall"));
  EXPECT_THAT(refusal("{kind: recall, alpha: 0}"), HasSubstr("alpha"));
  EXPECT_NO_THROW(config_of("{kind: recall, pairs: 8, vocabulary: 18, context: 32}"));
  EXPECT_THAT(test::message_of<UsageError>([] { make_sequences(DataConfig("listops")); }),
              HasSubstr("no generated sequences"));
}

TEST(Sequences, AreCountedAndNotPrepared) {
  const DataConfig config = config_of(
      "{kind: recall, vocabulary: 40, context: 32, train_examples: 30, validation_examples: 4}");
  const DataReport report = inspect_data(config);
  EXPECT_TRUE(report.labelled);
  EXPECT_EQ(report.vocabulary_size, 40);
  EXPECT_EQ(report.splits.at(0).documents, 30);
  EXPECT_EQ(report.splits.at(1).tokens, 128);
  EXPECT_THAT(test::message_of<UsageError>([&] { prepare_data(config, "nowhere"); }),
              HasSubstr("generates its sequences"));
}

}  // namespace
}  // namespace linnet
