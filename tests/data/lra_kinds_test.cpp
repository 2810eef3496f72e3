// The tasks of the Long Range Arena as kinds of data: how they are recognised, archives, keys.
#include <gmock/gmock.h>

#include "core/yaml.h"
#include "data/archive.h"
#include "data/inspect.h"
#include "data/lra_text.h"
#include "data/registry.h"
#include "tests/data/archive_files.h"
#include "tests/data/pathfinder_pictures.h"
#include "tests/data_path.h"

namespace linnet {
namespace {

using test::causes_of;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<test::Member> reviews() {
  std::vector<test::Member> members;
  for (const char* split : {"train", "test"})
    for (const char* label : {"neg", "pos"})
      for (int i = 0; i < 10; ++i)
        members.push_back({concat("aclImdb/", split, "/", label, "/", i, "_7.txt"),
                           concat(label, " ", std::string(static_cast<size_t>(i), 'x'))});
  return members;
}

void write_reviews(const TemporaryFolder& folder) {
  for (const test::Member& member : reviews()) folder.write(member.name, member.contents);
}

DataConfig parse(const std::string& yaml) {
  return parse_config<DataConfig>(parse_yaml(yaml, "recipe.yaml"));
}

TEST(LraKinds, AreRecognisedByTheirFilesAndOtherTextsAreNot) {
  TemporaryFolder folder;
  write_reviews(folder);
  EXPECT_EQ(detect_data_kind(folder / "aclImdb"), "lra_text");
  for (const char* name : {"books/train/pos/a.txt", "books/train/neg/b.txt", "books/test/c.txt",
                           "half/train/pos/1_2.txt", "half/test/neg/1_2.txt"})
    folder.write(name, "a");
  EXPECT_EQ(detect_data_kind(folder / "books"), "pg19");
  EXPECT_EQ(detect_data_kind(folder / "half"), "pg19");
  folder.write("i/train/cat/1.png", "");
  folder.write("i/test/cat/1.png", "");
  EXPECT_EQ(detect_data_kind(folder / "i"), "lra_image");
  folder.write("b/test_batch.bin", "");
  EXPECT_EQ(detect_data_kind(folder / "b"), "lra_image");
  folder.write("r/new_aan_pairs.test.tsv", "");
  EXPECT_EQ(detect_data_kind(folder / "r"), "lra_retrieval");
  test::write_pathfinder(folder, 10);
  EXPECT_EQ(detect_data_kind(folder / "curv_contour_length_14"), "pathfinder");
}

TEST(LraKinds, AnArchiveIsInspectedAndPreparedAsItsFolder) {
  TemporaryFolder folder;
  write_reviews(folder);
  const std::string archive =
      folder.write("a.tar.gz", test::pack(test::Packing::tar_gz, reviews()));
  DataConfig config("lra_text", archive);
  const DataReport prepared = prepare_data(config, folder / "cache");
  ASSERT_EQ(prepared.written.size(), 1u);
  EXPECT_EQ(prepared.written[0], unpacked(archive, folder / "cache"));
  EXPECT_EQ(prepared.splits[0].documents, 18);
  EXPECT_EQ(prepared.splits[1].documents, 2);
  EXPECT_EQ(prepared.splits[2].documents, 20);
  config.path = folder / "aclImdb";
  EXPECT_EQ(inspect_data(config).splits[0].tokens, prepared.splits[0].tokens);
  EXPECT_EQ(causes_of<UsageError>([&] { prepare_data(config, folder / "cache"); }),
            "conflict KIND");
  config.path = folder.write("cut.tar.gz", read_file(archive).substr(0, 300));
  EXPECT_THAT(causes_of([&] { prepare_data(config, folder / "cache"); }, folder.path()),
              HasSubstr("cut.tar.gz"));
}

TEST(LraKinds, WhatIsCutIsSaid) {
  TemporaryFolder folder;
  write_reviews(folder);
  DataConfig config("lra_text", folder / "aclImdb");
  config.options.as<LraTextOptions>().max_bytes = 10;
  EXPECT_THAT(inspect_data(config).warnings,
              ElementsAre(HasSubstr("test: 6 of 20 texts are longer than 10 bytes"),
                          HasSubstr("train and validation: 6 of 20")));
}

TEST(LraKinds, SwitchesAreKeysOfTheirKinds) {
  for (const char* yaml :
       {"{kind: lra_text, path: p, max_bytes: 100, cls: keep, validation_from: test}",
        "{kind: lra_retrieval, path: p, max_bytes: 100, cls: keep, lengths: like}",
        "{kind: lra_image, path: p, zero_is_pad: false, validation_fraction: 0.2, seed: 3}",
        "{kind: pathfinder, path: p, subset: curv_baseline, cls: keep}"}) {
    const ConfigNode resolved = to_config_node(parse(yaml));
    EXPECT_EQ(to_config_node(parse_config<DataConfig>(resolved)), resolved) << yaml;
  }
  EXPECT_EQ(causes_of<UsageError>([] { parse("{kind: lra_text}"); }),
            "missing_key path at recipe.yaml:1:8");
  EXPECT_EQ(causes_of<UsageError>([] { parse("{kind: lra_text, path: p, zero_is_pad: false}"); }),
            "conflict zero_is_pad at recipe.yaml:1:40");
  EXPECT_TRUE(says_which_data("validation_from"));
  EXPECT_TRUE(says_which_data("subset"));
}

TEST(LraKinds, TheBinaryBatchesAreInspected) {
  LINNET_REQUIRE_DATA(folder, "cifar10");
  const DataReport report = inspect_data(folder);
  EXPECT_EQ(report.kind, "lra_image");
  EXPECT_EQ(report.splits[0].documents + report.splits[1].documents, 2'000);
  EXPECT_EQ(report.splits[2].documents, 500);
}

}  // namespace
}  // namespace linnet
