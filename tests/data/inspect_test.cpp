// Tests of reports on data sets.
#include "data/inspect.h"

#include <gmock/gmock.h>

#include <numeric>

#include "data/listops.h"
#include "data/registry.h"
#include "data/text_dataset.h"
#include "tests/data/temporary_folder.h"
#include "tests/data/token_arrays.h"
#include "tests/data_path.h"

namespace linnet {
namespace {

using test::causes_of;
using test::TemporaryFolder;
using testing::HasSubstr;

TEST(InspectData, KindsAreTheChoicesOfTheConfiguration) {
  std::vector<std::string> names;
  for (const DataKind& kind : data_kinds()) {
    names.push_back(kind.name);
    EXPECT_FALSE(kind.help.empty());
  }
  for (const FieldSchema& field : schema_of<DataConfig>().fields)
    if (field.name == "kind") {
      EXPECT_EQ(field.choices, names);
    }
}

TEST(InspectData, LayoutsAreDetected) {
  TemporaryFolder folder;
  folder.write("w/wiki.valid.raw", "a\n");
  folder.write("x/valid.txt", " \n = Homarus gammarus = \n \n Homarus\n");
  folder.write("y/valid.txt", "the ptb = text\n");
  folder.write("l/basic_val.tsv", "");
  folder.write("p/train/1.txt", "a");
  folder.write("p/test/2.txt", "a");
  folder.write("s/CMakeLists.txt", "a");
  folder.write("t/a.txt", "a");
  // Files say more than folders, and these more than the place.
  folder.write("m/.git/config", "a");
  folder.write("m/train/1.txt", "a");
  folder.write("m/test/1.txt", "a");
  EXPECT_EQ(detect_data_kind(folder / "m"), "pg19");
  folder.write("m/wiki.test.tokens", "a");
  EXPECT_EQ(detect_data_kind(folder / "m"), "wikitext");
  EXPECT_EQ(detect_data_kind(folder / "w"), "wikitext");
  EXPECT_EQ(detect_data_kind(folder / "x"), "wikitext");
  EXPECT_EQ(detect_data_kind(folder / "y"), "text");
  EXPECT_EQ(detect_data_kind(folder / "l"), "listops");
  EXPECT_EQ(detect_data_kind(folder / "p"), "pg19");
  EXPECT_EQ(detect_data_kind(folder / "s"), "self");
  EXPECT_EQ(detect_data_kind(folder / "t"), "text");
  EXPECT_EQ(detect_data_kind(folder / "t/a.txt"), "text");
  EXPECT_EQ(causes_of([&] { detect_data_kind(folder / "n"); }, folder.path()), "not_found at n");
}

TEST(InspectData, CountsDocumentsBytesWordsAndTokens) {
  TemporaryFolder folder;
  folder.write("train/1.txt", "one two\n");
  folder.write("train/2.txt", "three");
  folder.write("test/3.txt", "four\n");
  const DataReport report = inspect_data(folder.path());
  EXPECT_EQ(report.kind, "pg19");
  ASSERT_EQ(report.splits.size(), 3u);
  EXPECT_EQ(report.splits[0].documents, 2);
  EXPECT_EQ(report.splits[0].bytes, 13);
  EXPECT_EQ(report.splits[0].words, 3);
  EXPECT_EQ(report.splits[0].tokens, 13);
  EXPECT_THAT(report.splits[1].missing, HasSubstr("validation does not exist"));
  EXPECT_EQ(report.splits[2].documents, 1);
}

TEST(InspectData, WikiTextAndListopsReportTheirCounts) {
  LINNET_REQUIRE_DATA(wikitext, "wikitext-103");
  LINNET_REQUIRE_DATA(listops, "listops");
  const DataReport words = inspect_data(wikitext);
  EXPECT_EQ(words.splits[1].words, 217'646);
  EXPECT_EQ(words.splits[2].words, 245'569);
  EXPECT_NE(words.splits[0].missing, "");
  LINNET_REQUIRE_DATA(named_txt, "wikitext-2");
  const DataReport txt = inspect_data(named_txt);
  EXPECT_EQ(txt.splits[1].words, 217'646);
  EXPECT_TRUE(txt.warnings.empty()) << txt.warnings.front();
  const DataReport lists = inspect_data(listops);
  EXPECT_EQ(lists.splits[2].documents, 200);
  ASSERT_EQ(lists.splits[2].of_class.size(), 10u);
  EXPECT_EQ(
      std::accumulate(lists.splits[2].of_class.begin(), lists.splits[2].of_class.end(), int64_t{0}),
      200);
}

TEST(PrepareData, TextIsTokenizedIntoTheFolderThatTrainingThenReads) {
  TemporaryFolder folder, out;
  folder.write("train/1.txt", "one two\n");
  folder.write("test/3.txt", "four\n");
  const DataConfig config("pg19", folder.path());
  const DataReport report = prepare_data(config, out.path());
  ASSERT_EQ(report.written.size(), 2u);
  for (const std::string& path : report.written) EXPECT_TRUE(exists(path)) << path;
  TextDataset data(config, nullptr, out.path());
  EXPECT_EQ(data.tokenizer()->decode(test::ids_of(data.split(Split::train)->tokens)), "one two\n");
  EXPECT_EQ(file_system().list(out.path()).size(), 2u);
}

TEST(PrepareData, GeneratedListopsBecomeFilesThatReadBack) {
  TemporaryFolder out;
  DataConfig config("listops");
  ListopsConfig& generator = config.options.as<ListopsOptions>().listops;
  generator.min_length = 5;
  generator.max_length = 30;
  generator.train_examples = 30;
  generator.validation_examples = generator.test_examples = 10;
  EXPECT_EQ(prepare_data(config, out / "made").written.size(), 3u);
  const auto back = read_listops(out / "made", true);
  EXPECT_EQ(back.split(Split::train)->tokens,
            generate_listops(generator).split(Split::train)->tokens);
}

}  // namespace
}  // namespace linnet
