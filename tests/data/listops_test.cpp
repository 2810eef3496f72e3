// Tests of ListOps: values, spellings, the generator, files, batches.
#include "data/listops.h"

#include <gmock/gmock.h>

#include <array>
#include <set>

#include "tests/data/temporary_folder.h"
#include "tests/data_path.h"

namespace linnet {
namespace {

using test::causes_of;
using test::message_of;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;

int32_t value_of(std::string_view text) {
  return evaluate_listops(parse_listops(text));
}

TEST(Listops, ValuesOfOperators) {
  EXPECT_EQ(value_of("7"), 7);
  EXPECT_EQ(value_of("[MIN 4 2 9 ]"), 2);
  EXPECT_EQ(value_of("[MAX 4 2 9 ]"), 9);
  EXPECT_EQ(value_of("[SM 4 2 9 ]"), 5);
  EXPECT_EQ(value_of("[MED 4 2 9 ]"), 4);
  EXPECT_EQ(value_of("[MED 4 2 9 7 ]"), 5);  // (4 + 7) / 2 rounded down
  EXPECT_EQ(value_of("[MED 0 1 ]"), 0);
  EXPECT_EQ(value_of("[MAX 2 9 [MIN 4 7 ] 0 [SM 8 8 ] ]"), 9);
  EXPECT_EQ(value_of("[SM [SM 9 9 ] [MED 3 6 [MAX 0 1 ] ] 5 ]"), 6);
}

TEST(Listops, MalformedExpressionsAreRefused) {
  for (const char* text : {"", "]", "[MAX ]", "[MAX 2 3", "1 2", "[MAX 1 2 ] 3", "[MAX 1 2 ] ]"})
    EXPECT_EQ(causes_of([&] { value_of(text); }), "malformed") << text;
  EXPECT_EQ(causes_of([] { parse_listops("[FIRST 1 2 ]"); }), "unknown_name [FIRST");
  EXPECT_EQ(causes_of([] { evaluate_listops(std::vector<int32_t>{0}); }), "malformed");
}

TEST(Listops, SpellingsRoundTrip) {
  const auto ids = parse_listops("( ( ( [MAX 2 ) ( ( ( [SM 4 ) 5 ) ] ) ) ] )");
  EXPECT_THAT(ids, ElementsAre(kListopsMax, 3, kListopsSm, 5, 6, kListopsEnd, kListopsEnd));
  EXPECT_EQ(listops_lra_text(ids), "( ( ( [MAX 2 ) ( ( ( [SM 4 ) 5 ) ] ) ) ] )");
  EXPECT_EQ(listops_lra_text(parse_listops("3")), "3");
}

TEST(Listops, FilesOfTheReferenceGeneratorAgreeWithOurValues) {
  LINNET_REQUIRE_DATA(folder, "listops");
  const auto data = read_listops(folder, true);
  EXPECT_FALSE(data.has(Split::train));  // present only as an archive
  EXPECT_EQ(causes_of([&] { data.split(Split::train); }), "not_found data.train");
  for (const Split name : {Split::validation, Split::test}) {
    const auto& split = *data.split(name);
    EXPECT_EQ(split.size(), 200);  // reading compares each label with the value
    for (int64_t i = 0; i < split.size(); ++i) {
      EXPECT_GT(split.example(i).size(), 500u);
      EXPECT_LT(split.example(i).size(), 2000u);
    }
  }
  // Our spelling of the first expression is that of the file.
  const std::string text = read_file(folder + "/basic_test.tsv");
  const size_t begin = text.find('\n') + 1;
  EXPECT_EQ(listops_lra_text(data.split(Split::test)->example(0)),
            text.substr(begin, text.find('\t', begin) - begin));
}

ListopsConfig small_config() {
  ListopsConfig config;
  config.min_length = 10;
  config.max_length = 60;
  config.train_examples = 3000;
  config.validation_examples = 500;
  config.test_examples = 2000;
  return config;
}

std::vector<int32_t> key_of(std::span<const int32_t> example) {
  return {example.begin(), example.end()};
}

TEST(ListopsGenerator, ExamplesAreDistinctInRangeAndRightlyLabelled) {
  const auto data = generate_listops(small_config());
  std::set<std::vector<int32_t>> seen;
  std::array<int, 10> labels{};
  for (const Split name : kSplits) {
    const auto& split = *data.split(name);
    for (int64_t i = 0; i < split.size(); ++i) {
      const auto example = split.example(i);
      EXPECT_TRUE(seen.insert(key_of(example)).second) << "repeated";
      ASSERT_TRUE(example.size() >= 10 && example.size() <= 60);
      const int32_t label = split.labels[static_cast<size_t>(i)];
      ASSERT_EQ(evaluate_listops(example), label);
      ++labels[static_cast<size_t>(label)];
    }
  }
  EXPECT_EQ(seen.size(), 5500u);
  for (const int count : labels) EXPECT_GT(count, 200);  // every class appears
}

TEST(ListopsGenerator, IsAFunctionOfTheSeedAndTestDoesNotDependOnTrain) {
  auto config = small_config();
  const auto a = generate_listops(config);
  config.train_examples = 10;
  const auto b = generate_listops(config);
  EXPECT_EQ(a.split(Split::test)->tokens, b.split(Split::test)->tokens);
  EXPECT_EQ(a.split(Split::validation)->tokens, b.split(Split::validation)->tokens);
  config.seed = 2;
  EXPECT_NE(generate_listops(config).split(Split::test)->tokens, b.split(Split::test)->tokens);
}

TEST(ListopsGenerator, LongRangeArenaSettingsMatchTheSpecification) {
  ListopsConfig config;
  config.train_examples = 1;
  config.validation_examples = 1;
  config.test_examples = 400;
  const ClassificationDataset data = generate_listops(config);
  const ClassificationSplit& split = *data.split(Split::test);
  double mean = 0;
  int zero_or_nine = 0;
  for (int64_t i = 0; i < split.size(); ++i) {
    mean += static_cast<double>(split.example(i).size()) / static_cast<double>(split.size());
    const int32_t label = split.labels[static_cast<size_t>(i)];
    zero_or_nine += label == 0 || label == 9;
  }
  // The specification's simulation: mean 1064 symbols, 17 % each for the labels 0 and 9. Bounds are
  // about four deviations of 400 examples.
  EXPECT_NEAR(mean, 1064, 90);
  EXPECT_NEAR(zero_or_nine / 400.0, 0.34, 0.095);
}

TEST(ListopsGenerator, ImpossibleRequestsAreRefused) {
  ListopsConfig config = small_config();
  config.min_length = config.max_length = 1;
  config.train_examples = 7;
  config.validation_examples = config.test_examples = 2;
  EXPECT_EQ(causes_of<UsageError>([&] { generate_listops(config); }), "out_of_range data.listops");
  EXPECT_THAT(message_of<UsageError>([&] { generate_listops(config); }),
              HasSubstr("only 10 distinct"));
}

TEST(ListopsGenerator, WithoutBracketsOnlyOpeningsRemain) {
  auto config = small_config();
  config.train_examples = 1;
  config.brackets = false;
  const auto plain = generate_listops(config);
  config.brackets = true;
  const auto full = generate_listops(config);
  std::vector<int32_t> expected(full.split(Split::test)->example(0).begin(),
                                full.split(Split::test)->example(0).end());
  std::erase(expected, kListopsEnd);
  const auto found = plain.split(Split::test)->example(0);
  EXPECT_EQ(std::vector<int32_t>(found.begin(), found.end()), expected);
  EXPECT_EQ(plain.split(Split::test)->labels, full.split(Split::test)->labels);
}

TEST(ListopsFiles, WrittenFilesReadBackAndDamageIsNamed) {
  TemporaryFolder folder;
  auto config = small_config();
  config.train_examples = 20;
  const auto data = generate_listops(config);
  const std::string path = folder / "basic_train.tsv";
  write_listops_tsv(path, *data.split(Split::train));
  const auto back = read_listops_tsv(path, true);
  EXPECT_EQ(back.tokens, data.split(Split::train)->tokens);
  EXPECT_EQ(back.labels, data.split(Split::train)->labels);

  const std::string good = read_file(path);
  const auto failure = [&](const std::string& text) {
    write_file(path, text);
    return causes_of([&] { read_listops_tsv(path, true); }, folder.path());
  };
  EXPECT_EQ(failure(good.substr(0, good.size() - 2)), "malformed at basic_train.tsv:21");
  EXPECT_THAT(message_of([&] { read_listops_tsv(path, true); }), HasSubstr("truncated"));
  EXPECT_EQ(failure("no header\n"), "malformed at basic_train.tsv:1");
  EXPECT_EQ(failure("Source\tTarget\n"), "malformed at basic_train.tsv");
  EXPECT_EQ(failure("Source\tTarget\n[MAX 1 2 ]\t3\n"), "conflict at basic_train.tsv:2");
  EXPECT_THAT(message_of([&] { read_listops_tsv(path, true); }),
              HasSubstr("basic_train.tsv:2: the label is 3 but the expression has the value 2"));
  EXPECT_EQ(failure("Source\tTarget\r\n[MAX 1 2 ]\t2\r\n[MAX 1 x ]\t2\r\n"),
            "unknown_name x at basic_train.tsv:3");
  // Columns and labels.
  for (const char* row : {"[MAX 1 2 ]", "[MAX 1 2 ]\t", "[MAX 1 2 ]\t2\t2", "\t2", "2", "",
                          "[MAX 1 2 ]\t02", "[MAX 1 2 ]\t-2", "[MAX 1 2 ]\t2 "})
    EXPECT_EQ(failure(concat("Source\tTarget\n", row, "\n[MAX 1 2 ]\t2\n")),
              "malformed at basic_train.tsv:2")
        << row;
  EXPECT_EQ(failure("Source\tTarget\n[MAX 1 2 ]\t" + std::string(10'000, '2') + "\n"),
            "malformed at basic_train.tsv:2");
  EXPECT_EQ(failure(std::string("Source\tTarget\n\0\t2\n", 18)),
            concat("unknown_name ", std::string(1, '\0'), " at basic_train.tsv:2"));
  EXPECT_EQ(causes_of([&] { read_listops(folder / "none", true); }, folder.path()),
            "not_found at none");
  const TemporaryFolder empty;
  EXPECT_EQ(causes_of([&] { read_listops(empty.path(), true); }),
            concat("not_found at ", empty.path()));
}

TEST(ListopsFiles, ByteOrderMarksAndWindowsLineEndsMeanNothing) {
  const TemporaryFolder folder;
  const auto examples = [&](std::string_view text) {
    return read_listops_tsv(folder.write("basic_val.tsv", text), true).tokens;
  };
  const auto plain = examples("Source\tTarget\n[MAX 1 2 ]\t2\n3\t3\n");
  EXPECT_EQ(plain.size(), 5u);
  EXPECT_EQ(examples("Source\tTarget\r\n[MAX 1 2 ]\t2\r\n3\t3\r\n"), plain);
  EXPECT_EQ(examples("\xEF\xBB\xBFSource\tTarget\n[MAX 1 2 ]\t2\n3\t3"), plain);
  EXPECT_EQ(examples("\xEF\xBB\xBFSource\tTarget\r\n[MAX 1 2 ]\t2\n3\t3\r\n"), plain);
}

TEST(ClassificationSampler, RowsArePaddedMaskedAndShuffledByTheCounterAlone) {
  auto split = std::make_shared<ClassificationSplit>();
  for (int32_t i = 0; i < 7; ++i)
    split->add(std::vector<int32_t>(static_cast<size_t>(i + 1), i + 1), i);
  const ClassificationSampler plain(split, 8, -1, 3), cls(split, 8, 16, 3);
  const Batch batch = cls.in_order(2, 100);
  ASSERT_EQ(batch.B, 5);
  EXPECT_EQ(batch.T, 8);
  EXPECT_EQ(batch.target_count, 5);
  EXPECT_THAT(batch.labels, ElementsAre(2, 3, 4, 5, 6));
  EXPECT_THAT(std::vector<int32_t>(batch.tokens.begin(), batch.tokens.begin() + 8),
              ElementsAre(16, 3, 3, 3, 0, 0, 0, 0));
  EXPECT_THAT(std::vector<int>(batch.mask.begin(), batch.mask.begin() + 8),
              ElementsAre(1, 1, 1, 1, 0, 0, 0, 0));
  std::multiset<int64_t> ids;
  const Batch epoch = plain.batch(7, 7);
  for (int64_t row = 0; row < 7; ++row) {
    const auto at = static_cast<size_t>(row);
    ids.insert(epoch.example_ids[at]);
    EXPECT_EQ(plain.batch(7 + row, 1).labels[0], epoch.labels[at]);
    EXPECT_EQ(epoch.labels[at], epoch.example_ids[at]);
  }
  EXPECT_EQ(ids, (std::multiset<int64_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(causes_of<UsageError>([&] { ClassificationSampler(split, 7, 16, 3); }),
            "out_of_range data.context");
}

}  // namespace
}  // namespace linnet
