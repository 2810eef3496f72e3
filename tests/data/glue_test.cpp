// GLUE's tasks: published files, their counts, their quirks.
#include "data/glue.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "core/yaml.h"
#include "data/inspect.h"
#include "data/registry.h"
#include "tests/data/temporary_folder.h"
#include "tests/data_path.h"

namespace linnet {
namespace {

using test::causes_of;
using test::TemporaryFolder;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

ClassificationDataset load(const std::string& path, const std::string& keys = "") {
  return load_classification(parse_config<DataConfig>(parse_yaml(
      concat("{kind: glue, path: ", path, ", context: 8192", keys.empty() ? "" : ", ", keys, "}"),
      "test")));
}

std::vector<int64_t> sizes(const ClassificationDataset& data) {
  std::vector<int64_t> result;
  for (const Split split : kSplits)
    result.push_back(data.has(split) ? data.split(split)->size() : 0);
  return result;
}

// The texts of an example of bytes, without CLS and SEP.
std::string bytes_of(const ClassificationDataset& data, Split split, int64_t example) {
  std::string text;
  for (const int32_t id : data.split(split)->example(example))
    if (id <= 256) text += static_cast<char>(id - 1);
  return text;
}

TEST(Glue, WholeTasksHaveThePublishedCounts) {
  LINNET_REQUIRE_DATA(glue, "glue");
  for (const auto& [folder, counts] : {std::pair("SST-2", std::vector<int64_t>{67349, 872, 1821}),
                                       std::pair("RTE", std::vector<int64_t>{2490, 277, 3000}),
                                       std::pair("WNLI", std::vector<int64_t>{635, 71, 146}),
                                       std::pair("QNLI", std::vector<int64_t>{0, 5463, 5463})}) {
    const std::string path = concat(glue, "/", folder);
    EXPECT_EQ(detect_data_kind(path), "glue");
    const ClassificationDataset data = load(path);
    EXPECT_EQ(sizes(data), counts) << folder;
    EXPECT_THAT(data.notes, IsEmpty()) << folder;
    EXPECT_THAT(data.split(Split::test)->labels, Each(kUnlabelled)) << folder;
    EXPECT_THAT(data.split(Split::validation)->labels, Not(Contains(kUnlabelled)));
    // The folder above, and the task by its name.
    const std::string name(glue_task_of_folder(path)->name);
    if (counts[0] < 1000) {
      EXPECT_EQ(load(glue, "task: " + name).fingerprint(Split::test),
                data.fingerprint(Split::test));
    }
  }
}

// Two texts of bytes as they are: three tokens fewer than with CLS and two SEP, ids not moved up.
TEST(Glue, TextsCanStandWithoutSpecialTokens) {
  LINNET_REQUIRE_DATA(path, "glue_samples/RTE");
  const auto with = load(path), without = load(path, "special_tokens: none");
  EXPECT_EQ(without.vocabulary_size, 256);
  const auto ids = without.split(Split::train)->example(0);
  EXPECT_EQ(ids.size() + 3, with.split(Split::train)->example(0).size());
  EXPECT_EQ(std::string(ids.begin(), ids.end()), bytes_of(with, Split::train, 0));
}

TEST(Glue, TheIndexOfTestFilesIsTheNumberOfTheRow) {
  LINNET_REQUIRE_DATA(glue, "glue");
  for (const char* folder : {"SST-2", "RTE", "WNLI", "QNLI"}) {
    BadRows bad(false);
    const RowFile file = read_rows(concat(glue, "/", folder, "/test.tsv"), RowFormat::tsv,
                                   {.text = "index", .label = ""}, bad);
    const auto same = [](const TextRow& row) { return row.text == std::to_string(row.number); };
    EXPECT_TRUE(std::all_of(file.rows.begin(), file.rows.end(), same)) << folder;
  }
}

TEST(Glue, MajoritiesOfTheDevelopmentSets) {
  LINNET_REQUIRE_DATA(glue, "glue");
  const DataReport wnli = inspect_data(concat(glue, "/WNLI"));
  EXPECT_THAT(wnli.splits[1].of_class, ElementsAre(40, 31));  // 56.34 %
  const DataReport rte = inspect_data(concat(glue, "/RTE"));
  EXPECT_THAT(rte.classes, ElementsAre("entailment", "not_entailment"));
  EXPECT_THAT(rte.splits[1].of_class, ElementsAre(146, 131));  // 52.71 %
  EXPECT_THAT(rte.splits[2].of_class, IsEmpty());
}

TEST(Glue, SubsetsAreSaidToBeSome) {
  LINNET_REQUIRE_DATA(subset, "glue_subset");
  for (const char* folder : {"QNLI", "MNLI", "QQP"}) {
    const std::string path = concat(subset, "/", folder);
    const ClassificationDataset data =
        load(path, "train: [train.tsv], validation: [dev_from_train.tsv]");
    EXPECT_THAT(sizes(data), ElementsAre(8999, 1000, 0)) << folder;
    EXPECT_THAT(
        data.notes,
        Contains(HasSubstr(concat("train: 8999 rows, where the published ", folder, " has "))));
    // Without a list, a tenth of the training rows is held out.
    EXPECT_THAT(sizes(load(path)), ElementsAre(8099, 900, 0)) << folder;
  }
  const auto mnli = load(concat(subset, "/MNLI"));
  EXPECT_THAT(mnli.class_names, ElementsAre("entailment", "neutral", "contradiction"));
}

TEST(Glue, AllNineTasksOfTheSamplesAreRead) {
  LINNET_REQUIRE_DATA(samples, "glue_samples");
  for (const GlueTask& task : glue_tasks()) {
    const std::string path = concat(samples, "/", task.folder);
    EXPECT_EQ(detect_data_kind(path), "glue");
    const ClassificationDataset data = load(path);
    const int64_t rows = task.name == "cola" ? 2 : 1;
    EXPECT_THAT(sizes(data), ElementsAre(rows, rows, 1)) << task.name;
    EXPECT_EQ(data.regression, task.name == "stsb");
    EXPECT_EQ(data.classes, task.name == "mnli" ? 3 : data.regression ? 1 : 2) << task.name;
    EXPECT_EQ(data.split(Split::train)->types.empty(), task.columns.text_pair.empty());
    EXPECT_EQ(data.split(Split::train)->values.size(), data.regression ? 1u : 0u);
  }
  const std::string mnli = concat(samples, "/MNLI");
  EXPECT_NE(load(mnli).fingerprint(Split::validation),
            load(mnli, "section: mismatched").fingerprint(Split::validation));
}

TEST(Glue, ColumnsAreFoundByNameBehindAByteOrderMark) {
  TemporaryFolder folder;
  folder.write("MRPC/train.tsv",
               "\xEF\xBB\xBF#2 String\t#1 ID\tQuality\t#1 String\r\n\"b\t7\t1\ta\"\r\n");
  folder.write("MRPC/dev.tsv", "Quality\t#1 String\t#2 String\n0\tc\td\n");
  folder.write("MRPC/test.tsv", "index\t#1 String\t#2 String\n0\te\tf\n");
  const auto data = load(folder / "MRPC");
  EXPECT_THAT(data.split(Split::train)->labels, ElementsAre(1));
  EXPECT_EQ(bytes_of(data, Split::train, 0), "a\"\"b");
  EXPECT_EQ(bytes_of(data, Split::test, 0), "ef");
}

TEST(Glue, RowsWithMissingFieldsAreLeftOutOfQqpAndRefusedElsewhere) {
  TemporaryFolder folder;
  const std::string head = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n";
  folder.write("QQP/train.tsv", head + "1\t2\t3\ta\tb\t0\n4\t5\t6\tc\n7\t8\t9\td\t\t1\n");
  folder.write("QQP/dev.tsv", head + "1\t2\t3\ta\tb\t1\n");
  const auto data = load(folder / "QQP");
  // A text may be empty, a field must be there.
  EXPECT_THAT(data.split(Split::train)->labels, ElementsAre(0, 1));
  EXPECT_THAT(data.split(Split::train)->rows, ElementsAre(0, 2));
  EXPECT_THAT(data.notes, Contains(HasSubstr("QQP/train.tsv: 1 row is left out, line 3")));
  folder.write("RTE/train.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tentailment\n");
  EXPECT_EQ(causes_of([&] { load(folder / "RTE"); }, folder.path()),
            "malformed at RTE/train.tsv:2");
  folder.write("RTE/train.tsv", "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tperhaps\n");
  EXPECT_EQ(causes_of([&] { load(folder / "RTE"); }, folder.path()),
            "malformed at RTE/train.tsv:2");
  folder.write("STS-B/dev.tsv", "sentence1\tsentence2\tscore\na\tb\tnan\n");
  EXPECT_EQ(causes_of([&] { load(folder / "STS-B"); }, folder.path()),
            "malformed at STS-B/dev.tsv:2");
}

TEST(Glue, FoldersWithoutATaskAreRefused) {
  TemporaryFolder folder;
  folder.write("all/SST-2/dev.tsv", "sentence\tlabel\na\t1\n");
  folder.write("all/MNLI/dev_matched.tsv", "");
  folder.write("all/readme.txt", "a text");
  EXPECT_THAT(test::message_of<UsageError>([&] { inspect_data(folder / "all"); }),
              HasSubstr("all holds several tasks of GLUE: SST-2, MNLI; name the folder"));
  folder.write("mine/train.tsv", "sentence\tlabel\na\t1\n");
  EXPECT_EQ(causes_of<UsageError>([&] { load(folder / "mine"); }, folder.path()),
            "missing_key data.task at mine");
  EXPECT_THAT(test::message_of<UsageError>([&] { load(folder / "all/SST-2", "task: wnli"); }),
              HasSubstr("SST-2 has the name of the task sst2, and data.task is wnli"));
  EXPECT_EQ(load(folder / "mine", "task: sst2, validation: [train.tsv]").has(Split::train), false);
  EXPECT_EQ(
      causes_of([&] { load(folder / "mine", "task: mnli, section: mismatched"); }, folder.path()),
      "not_found data.text at mine/train.tsv:1");
}

}  // namespace
}  // namespace linnet
