// Pathfinder: its folders and metadata, splits, empty pictures, bad lines.
#include "data/pathfinder.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <vector>

#include "tests/data/pathfinder_pictures.h"

namespace linnet {
namespace {

using test::causes_of;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Pathfinder, PicturesAreShuffledAndSplitBySeed) {
  TemporaryFolder folder;
  test::write_pathfinder(folder, 50);
  EXPECT_TRUE(is_pathfinder(folder.path()));
  EXPECT_TRUE(is_pathfinder(folder / "curv_contour_length_14"));
  const auto data = read_pathfinder(folder.path(), {});
  EXPECT_EQ(data.split(Split::train)->size(), 40);
  EXPECT_EQ(data.split(Split::validation)->size(), 5);
  EXPECT_EQ(data.split(Split::test)->size(), 5);
  EXPECT_EQ(data.classes, 2);
  EXPECT_EQ(data.vocabulary_size, 257);
  EXPECT_THAT(data.notes, IsEmpty());
  const auto& train = *data.split(Split::train);
  std::vector<std::vector<uint8_t>> pictures[2];  // by label
  for (int64_t i = 0; i < 50; ++i)
    for (const bool one_path : {false, true})
      pictures[one_path ? 1 : 0].push_back(test::pathfinder_picture(i, one_path).values);
  int64_t ones = 0;
  for (int64_t i = 0; i < train.size(); ++i) {
    ASSERT_EQ(train.example(i).size(), 1024u);
    ones += train.labels[static_cast<size_t>(i)];
    // Label and picture belong together.
    const auto& candidates = pictures[train.labels[static_cast<size_t>(i)]];
    const std::vector<uint8_t> ids(train.example(i).begin(), train.example(i).end());
    EXPECT_NE(std::find(candidates.begin(), candidates.end(), ids), candidates.end()) << i;
  }
  EXPECT_GT(ones, 10);
  EXPECT_LT(ones, 30);
  const auto same = read_pathfinder(folder / "curv_contour_length_14", {});
  EXPECT_EQ(same.fingerprint(Split::test), data.fingerprint(Split::test));
  PathfinderOptions other;
  other.seed = 2;
  EXPECT_NE(read_pathfinder(folder.path(), other).fingerprint(Split::test),
            data.fingerprint(Split::test));
}

TEST(Pathfinder, EmptyPicturesAreCountedAndSaid) {
  TemporaryFolder folder;
  test::write_pathfinder(folder, 40, 10);
  PathfinderOptions options;
  options.zero_is_pad = false;
  const auto data = read_pathfinder(folder.path(), options);
  int64_t read = 0;
  for (const Split split : kSplits) read += data.split(split)->size();
  EXPECT_EQ(read, 36);
  EXPECT_EQ(data.vocabulary_size, 258);
  EXPECT_THAT(data.notes, ElementsAre(HasSubstr("4 of 40 pictures are files of no bytes")));
}

TEST(Pathfinder, BadLinesAndPicturesAreNamed) {
  TemporaryFolder folder;
  const std::string at = "curv_contour_length_14/metadata/0.npy";
  const auto cause = [&] {
    return causes_of([&] { read_pathfinder(folder.path(), {}); },
                     folder / "curv_contour_length_14");
  };
  EXPECT_THAT(cause(), HasSubstr("not_found"));
  test::write_pathfinder(folder, 10);
  EXPECT_EQ(cause(), "nothing thrown");
  const std::string good = read_file(folder / at);
  folder.write(at, good + "imgs/0 sample_0.png 0\n");
  EXPECT_EQ(cause(), "malformed at metadata/0.npy:11");
  folder.write(at, good + "imgs/0 sample_0.png 0 2\n");
  EXPECT_EQ(cause(), "malformed at metadata/0.npy:11");
  folder.write(at, good + "imgs/../.. passwd 0 1\n");
  EXPECT_EQ(cause(), "malformed at metadata/0.npy:11");
  folder.write(at, good + "imgs/0 sample_77.png 0 1\n");
  EXPECT_EQ(cause(), "not_found at metadata/0.npy:11");
  folder.write(at, "\x93NUMPY\x01");
  EXPECT_EQ(cause(), "malformed at metadata/0.npy");
  folder.write(at, good.substr(0, good.find('\n') + 1));
  EXPECT_EQ(cause(), "malformed at metadata");
  folder.write(at, good);
  folder.write("curv_contour_length_14/imgs/0/sample_3.png", "text");
  EXPECT_EQ(cause(), "malformed at imgs/0/sample_3.png");
  folder.write("curv_contour_length_14/imgs/0/sample_3.png",
               test::to_png({8, 8, 1, std::vector<uint8_t>(64, 9)}));
  EXPECT_THAT(cause(), HasSubstr("conflict at imgs/0/"));
}

}  // namespace
}  // namespace linnet
