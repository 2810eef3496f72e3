// LRA's Text and Retrieval: layouts, bytes, cuts, held-out reviews, bad rows.
#include "data/lra_text.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "data/archive.h"
#include "tests/data/archive_files.h"
#include "tests/data/temporary_folder.h"
#include "tests/data_path.h"

namespace linnet {
namespace {

using test::causes_of;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(LraText, ReviewsBecomeBytesAndATenthIsHeldOut) {
  TemporaryFolder folder;
  for (int i = 0; i < 20; ++i) {
    folder.write(concat("train/neg/", i, "_1.txt"), concat("bad ", i));
    folder.write(concat("train/pos/", i, "_9.txt"), concat("good ", i));
  }
  folder.write("train/unsup/0_0.txt", "never read");
  folder.write("test/neg/0_1.txt", "\xc3\xa4");
  folder.write("test/pos/0_9.txt", std::string(10, 'x'));
  EXPECT_TRUE(is_lra_text(folder.path()));
  LraTextOptions options;
  const auto data = read_lra_text(folder.path(), options);
  EXPECT_EQ(data.vocabulary_size, 258);
  EXPECT_THAT(data.class_names, ElementsAre("neg", "pos"));
  EXPECT_EQ(data.split(Split::train)->size(), 36);
  EXPECT_EQ(data.split(Split::validation)->size(), 4);
  const auto& test = *data.split(Split::test);
  EXPECT_THAT(test.labels, ElementsAre(0, 1));
  EXPECT_THAT(test.example(0), ElementsAre(0xc3 + 1, 0xa4 + 1));
  EXPECT_THAT(data.notes, IsEmpty());
  options.max_bytes = 5;
  options.validation_from = "test";
  const auto cut = read_lra_text(folder.path(), options);
  EXPECT_EQ(cut.split(Split::train)->size(), 40);
  EXPECT_EQ(cut.fingerprint(Split::validation), cut.fingerprint(Split::test));
  EXPECT_EQ(cut.split(Split::test)->longest(), 5);
  EXPECT_THAT(cut.notes, ElementsAre(HasSubstr("test: 1 of 2 texts are longer than 5 bytes"),
                                     HasSubstr("train and validation: 30 of 40 texts")));
}

TEST(LraText, MissingAndIllFormedReviewsAreNamed) {
  TemporaryFolder folder;
  const auto message = [&] { return test::message_of([&] { read_lra_text(folder.path(), {}); }); };
  EXPECT_THAT(message(), HasSubstr("neither train/ nor test/"));
  folder.write("test/pos/0.txt", "x");
  EXPECT_THAT(message(), HasSubstr("test/neg does not exist"));
  folder.write("test/neg/readme", "x");
  EXPECT_THAT(message(), HasSubstr("test/neg holds no *.txt"));
  folder.write("test/neg/0.txt", "");
  EXPECT_THAT(message(), HasSubstr("test/neg/0.txt: the text is empty"));
  folder.write("test/neg/0.txt", "ab\xff");
  EXPECT_THAT(message(), testing::AllOf(HasSubstr("test/neg/0.txt"), HasSubstr("2")));
}

TEST(LraText, AllReviewsOfTheArchive) {
  LINNET_REQUIRE_DATA(archive, "imdb/aclImdb_labelled.tar.xz");
  const test::FilesInMemory fast;
  TemporaryFolder cache;
  const std::string folder = unpacked(archive, cache.path());
  EXPECT_EQ(file_name(folder), "aclImdb");
  const auto data = read_lra_text(folder, {});
  EXPECT_EQ(data.split(Split::train)->size(), 22'500);
  EXPECT_EQ(data.split(Split::validation)->size(), 2'500);
  EXPECT_EQ(data.split(Split::test)->size(), 25'000);
  const auto positive = [&](Split split) {
    const auto& labels = data.split(split)->labels;
    return std::count(labels.begin(), labels.end(), 1);
  };
  EXPECT_EQ(positive(Split::test), 12'500);
  EXPECT_EQ(positive(Split::train) + positive(Split::validation), 12'500);
  EXPECT_THAT(data.notes, ElementsAre(HasSubstr("test: 718 of 25000"),
                                      HasSubstr("train and validation: 792 of 25000")));
  // An epoch in batches of like lengths has at most 0.36 of the padded one's tokens.
  const ClassificationSampler like(data.split(Split::train), 4096, -1, 1, 32);
  int64_t tokens = 0;
  for (int64_t first = 0; first < 22'500; first += 32) {
    const Batch batch = like.batch(first, 32);
    tokens += batch.B * batch.T;
  }
  EXPECT_LE(static_cast<double>(tokens), 0.36 * 22'500 * 4096);
}

TEST(LraRetrieval, RowsBecomePairs) {
  TemporaryFolder folder;
  folder.write("new_aan_pairs.train.tsv",
               "1.0\tP1\tP2\tab\t\"quoted\r\n0.0\tP1\tP3\tab\tc\n1\ta\tb\tc\td");
  folder.write("new_aan_pairs.eval.tsv", concat("0.0\ta\tb\t", std::string(5000, 'x'), "\ty\n"));
  const auto data = read_lra_retrieval(folder.path(), {});
  EXPECT_FALSE(data.has(Split::test));
  const auto& train = *data.split(Split::train);
  EXPECT_EQ(train.sequences_per_example, 2);
  EXPECT_THAT(train.labels, ElementsAre(1, 0, 1));
  EXPECT_THAT(train.example(0), ElementsAre('a' + 1, 'b' + 1));
  EXPECT_EQ(train.example(0, 1).size(), 7u);
  EXPECT_THAT(train.example(2, 1), ElementsAre('d' + 1));
  EXPECT_EQ(data.split(Split::validation)->longest(), 4000);
  EXPECT_THAT(data.notes, ElementsAre(HasSubstr("validation: 1 of 2 texts")));
}

TEST(LraRetrieval, BatchesHaveTwoRowsAnExample) {
  TemporaryFolder folder;
  folder.write("new_aan_pairs.train.tsv", "1.0\tp\tq\tab\tc\n0.0\tp\tq\td\tefg\n");
  const auto data = read_lra_retrieval(folder.path(), {});
  EXPECT_EQ(data.rows_per_example(), 2);
  const ClassificationSampler sampler(data.split(Split::train), 4, data.cls_id(), 3);
  EXPECT_EQ(sampler.examples_per_epoch(), 2);
  const Batch batch = sampler.in_order(0, 5);
  EXPECT_EQ(batch.B, 4);
  EXPECT_EQ(batch.rows_per_example, 2);
  const int32_t cls = 257;
  EXPECT_THAT(batch.tokens, ElementsAre(cls, 'a' + 1, 'b' + 1, 0, cls, 'c' + 1, 0, 0,  //
                                        cls, 'd' + 1, 0, 0, cls, 'e' + 1, 'f' + 1, 'g' + 1));
  EXPECT_THAT(batch.mask, ElementsAre(1, 1, 1, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 1, 1));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_THAT(batch.labels, ElementsAre(1, 0));
  EXPECT_THAT(batch.example_ids, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(batch.target_count, 2);
  // Both rows of an example move together, and the longest of all rows says how far to pad.
  const Batch epoch = sampler.batch(0, 2);
  EXPECT_EQ(epoch.example_ids[1], epoch.example_ids[0] + 1);
  EXPECT_EQ(epoch.labels[0], epoch.example_ids[0] == 0 ? 1 : 0);
  folder.write("new_aan_pairs.train.tsv",
               concat("1.0\tp\tq\ta\t", std::string(20, 'x'), "\n0.0\tp\tq\td\te\n"));
  const auto longer = read_lra_retrieval(folder.path(), {});
  const ClassificationSampler like(longer.split(Split::train), 100, -1, 3, 1);
  EXPECT_EQ(like.batch_of(std::vector<int64_t>{0}).T, 32);
  EXPECT_EQ(like.batch_of(std::vector<int64_t>{1}).T, 16);
  EXPECT_THAT(like.scoring_order(2), ElementsAre(0, 1));
}

TEST(LraRetrieval, BadRowsAreNamed) {
  TemporaryFolder folder;
  const std::string good = "1.0\ta\tb\tc\td\n", name = "new_aan_pairs.test.tsv";
  const auto cause = [&](const std::string& row) {
    folder.write(name, good + row);
    return causes_of([&] { read_lra_retrieval(folder.path(), {}); }, folder.path());
  };
  EXPECT_EQ(cause(""), "nothing thrown");
  EXPECT_EQ(cause("1.0\ta\tb\tc\n"), "malformed at new_aan_pairs.test.tsv:2");
  EXPECT_EQ(cause("1.0\ta\tb\tc\td\te\n"), "malformed at new_aan_pairs.test.tsv:2");
  EXPECT_EQ(cause("\n"), "malformed at new_aan_pairs.test.tsv:2");
  EXPECT_EQ(cause("0.5\ta\tb\tc\td\n"), "malformed at new_aan_pairs.test.tsv:2");
  EXPECT_EQ(cause("nan\ta\tb\tc\td\n"), "malformed at new_aan_pairs.test.tsv:2");
  EXPECT_EQ(cause("1.0\ta\tb\tc\t\n"), "malformed at new_aan_pairs.test.tsv:2");
  EXPECT_THAT(test::message_of([&] {
                folder.write(name, "1.0\ta\tb\tc\xff\td\n");
                read_lra_retrieval(folder.path(), {});
              }),
              HasSubstr("new_aan_pairs.test.tsv:1: text1: expected UTF-8 text"));
  // Lines longer than a block of reading.
  folder.write(name, concat(good, "0.0\ta\tb\t", std::string(3'000'000, 'x'), "\ty\n", good));
  EXPECT_EQ(read_lra_retrieval(folder.path(), {}).split(Split::test)->size(), 3);
  remove_all(folder / name);
  EXPECT_THAT(causes_of([&] { read_lra_retrieval(folder.path(), {}); }), HasSubstr("not_found"));
}

}  // namespace
}  // namespace linnet
