// LRA's Image task: CIFAR-10's batches, folders by class, black pixels, CLS, held-out images.
#include "data/lra_image.h"

#include <gmock/gmock.h>

#include <set>

#include "data/archive.h"
#include "data/image.h"
#include "tests/data/archive_files.h"
#include "tests/data/image_files.h"
#include "tests/data/temporary_folder.h"
#include "tests/data_path.h"

namespace linnet {
namespace {

using test::causes_of;
using test::TemporaryFolder;
using test::to_jpeg;
using test::to_png;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr size_t kPixels = 32 * 32;

// A CIFAR-10 image of one colour.
std::string flat_image(char label, int red, int green, int blue) {
  std::string bytes(1, label);
  for (const int value : {red, green, blue})
    bytes += std::string(kPixels, static_cast<char>(value));
  return bytes;
}

std::string batch(int images) {
  std::string bytes;
  for (int i = 0; i < images; ++i) bytes += flat_image(static_cast<char>(i % 10), i + 10, 0, 0);
  return bytes;
}

Image grey_image(int64_t side, uint8_t value) {
  return {side, side, 1, std::vector<uint8_t>(static_cast<size_t>(side * side), value)};
}

TEST(LraImage, BatchesBecomeGreyIdsAndTheLastTenthIsValidation) {
  TemporaryFolder folder;
  folder.write("data_batch_1.bin", batch(20));
  folder.write("data_batch_2.bin", flat_image(9, 255, 255, 255) + batch(9));
  folder.write("test_batch.bin", flat_image(3, 10, 20, 30));
  folder.write("batches.meta.txt", "airplane\n");
  const auto data = read_lra_image(folder.path(), {});
  EXPECT_EQ(data.layout, "binary batches of CIFAR-10");
  EXPECT_EQ(data.vocabulary_size, 257);
  EXPECT_EQ(data.cls_id(), 256);
  EXPECT_EQ(data.classes, 10);
  EXPECT_EQ(data.class_names[9], "truck");
  const auto& train = *data.split(Split::train);
  ASSERT_EQ(train.size(), 27);
  EXPECT_EQ(data.split(Split::validation)->size(), 3);
  EXPECT_THAT(data.split(Split::validation)->labels, ElementsAre(6, 7, 8));
  EXPECT_EQ(train.labels[20], 9);
  EXPECT_EQ(train.example(20).size(), kPixels);
  EXPECT_EQ(train.example(20)[0], 255);
  EXPECT_EQ(data.split(Split::test)->labels[0], 3);
  EXPECT_EQ(data.split(Split::test)->example(0)[1023], grey_value(10, 20, 30));
}

TEST(LraImage, BlackPixelsArePaddingOrIdsOfTheirOwn) {
  TemporaryFolder folder;
  std::string image = flat_image(1, 255, 255, 255);
  image[1] = image[1 + kPixels] = image[1 + 2 * kPixels] = '\0';
  folder.write("test_batch.bin", image);
  LraImageOptions options;
  const auto parity = read_lra_image(folder.path(), options);
  const auto row = [](const ClassificationDataset& data, int64_t length, int32_t cls) {
    return ClassificationSampler(data.split(Split::test), length, cls, 1).in_order(0, 1);
  };
  Batch padded = row(parity, 1024, -1);
  EXPECT_EQ(padded.tokens[0], 0);
  EXPECT_EQ(padded.mask[0], 0);
  EXPECT_EQ(padded.tokens[1], 255);
  EXPECT_EQ(padded.mask[1], 1);
  // CLS takes the room of the last pixel, or finds none.
  padded = row(parity, 1024, parity.cls_id());
  EXPECT_EQ(padded.tokens[0], 256);
  EXPECT_EQ(padded.mask[0], 1);
  EXPECT_EQ(padded.mask[1], 0);
  EXPECT_EQ(padded.tokens[1023], 255);
  EXPECT_EQ(row(parity, 1025, parity.cls_id()).tokens[1024], 255);
  EXPECT_EQ(causes_of<UsageError>([&] { row(parity, 1023, -1); }), "out_of_range data.context");
  options.zero_is_pad = false;
  options.cls = "keep";
  const auto clean = read_lra_image(folder.path(), options);
  EXPECT_EQ(clean.vocabulary_size, 258);
  const Batch valid = row(clean, 1024, -1);
  EXPECT_EQ(valid.tokens[0], 1);
  EXPECT_EQ(valid.mask[0], 1);
  EXPECT_EQ(valid.tokens[1], 256);
  EXPECT_EQ(causes_of<UsageError>([&] { row(clean, 1024, 257); }), "out_of_range data.context");

  folder.write("test_batch.bin", flat_image(1, 0, 0, 0));
  EXPECT_EQ(read_lra_image(folder.path(), options).split(Split::test)->example(0)[5], 1);
  options.zero_is_pad = true;
  EXPECT_EQ(causes_of([&] { read_lra_image(folder.path(), options); }, folder.path()),
            "conflict zero_is_pad at test_batch.bin: image 0");
}

TEST(LraImage, FoldersByClassAreReadInTheOrderOfTheirNames) {
  TemporaryFolder folder;
  for (int i = 0; i < 10; ++i) {
    folder.write(concat("train/cat/", i, ".png"),
                 to_png(grey_image(8, static_cast<uint8_t>(1 + i))));
    folder.write(concat("train/ant/", i, ".png"),
                 to_png(grey_image(8, static_cast<uint8_t>(101 + i))));
  }
  folder.write("train/cat/.hidden.png", "");
  folder.write("train/cat/notes.txt", "x");
  folder.write("test/cat/a.png", to_png(grey_image(8, 50)));
  EXPECT_TRUE(is_lra_image(folder.path()));
  const auto data = read_lra_image(folder.path(), {});
  EXPECT_THAT(data.class_names, ElementsAre("ant", "cat"));
  EXPECT_EQ(data.layout, "folders of images by class");
  EXPECT_THAT(data.split(Split::test)->labels, ElementsAre(1));
  const auto& train = *data.split(Split::train);
  const auto& validation = *data.split(Split::validation);
  ASSERT_EQ(train.size(), 18);
  ASSERT_EQ(validation.size(), 2);
  std::set<int32_t> values;
  for (const auto* split : {&train, &validation})
    for (int64_t i = 0; i < split->size(); ++i) {
      EXPECT_EQ(split->example(i)[0] > 100 ? 0 : 1, split->labels[static_cast<size_t>(i)]);
      values.insert(split->example(i)[0]);
    }
  EXPECT_EQ(values.size(), 20u);
  LraImageOptions other;
  other.seed = 2;
  EXPECT_NE(read_lra_image(folder.path(), other).fingerprint(Split::validation),
            data.fingerprint(Split::validation));
  // A folder for validation takes the place of the share.
  folder.write("dev/ant/a.jpg", to_jpeg(grey_image(8, 70)));
  const auto with_dev = read_lra_image(folder.path(), {});
  EXPECT_EQ(with_dev.split(Split::train)->size(), 20);
  EXPECT_THAT(with_dev.split(Split::validation)->labels, ElementsAre(0));
  EXPECT_THAT(with_dev.layout, HasSubstr("lossy"));
}

TEST(LraImage, DamagedAndMissingFilesAreNamed) {
  TemporaryFolder folder;
  const auto cause = [&] {
    return causes_of([&] { read_lra_image(folder.path(), {}); }, folder.path());
  };
  EXPECT_THAT(cause(), HasSubstr("not_found"));
  folder.write("test_batch.bin", batch(2) + "x");
  EXPECT_EQ(cause(), "malformed at test_batch.bin");
  folder.write("test_batch.bin", batch(2).substr(1));
  EXPECT_EQ(cause(), "malformed at test_batch.bin");
  folder.write("test_batch.bin", flat_image(10, 1, 1, 1));
  EXPECT_EQ(cause(), "out_of_range at test_batch.bin");
  remove_all(folder / "test_batch.bin");
  folder.write("test/a/1.png", to_png(grey_image(8, 9)));
  folder.write("test/a/2.png", to_png(grey_image(9, 9)));
  EXPECT_EQ(cause(), "conflict at test/a/2.png");
  folder.write("test/a/2.png", "no image");
  EXPECT_EQ(cause(), "malformed at test/a/2.png");
  folder.write("test/a/2.png", to_png(grey_image(8, 9)));
  folder.write("train/b/1.png", to_png(grey_image(8, 9)));
  folder.write("train/b/2.png", to_png(grey_image(8, 8)));
  EXPECT_EQ(cause(), "unknown_name at test/a");
}

TEST(LraImage, TwoThousandImagesOfTheBinaryLayout) {
  LINNET_REQUIRE_DATA(folder, "cifar10");
  const auto data = read_lra_image(folder, {});
  EXPECT_EQ(data.split(Split::train)->size(), 1800);
  EXPECT_EQ(data.split(Split::validation)->size(), 200);
  EXPECT_EQ(data.split(Split::test)->size(), 500);
  std::vector<int> counts(10, 0);
  for (const Split split : {Split::train, Split::validation})
    for (const int32_t label : data.split(split)->labels) ++counts[static_cast<size_t>(label)];
  for (const int count : counts) EXPECT_EQ(count, 200);
}

TEST(LraImage, SixtyThousandImagesOfTheJpegLayout) {
  LINNET_REQUIRE_DATA(archive, "cifar10/cifar10_jpg.tar.xz");
  const test::FilesInMemory fast;
  TemporaryFolder cache;
  const std::string folder = unpacked(archive, cache.path());
  const auto data = read_lra_image(folder, {});
  EXPECT_THAT(data.layout, HasSubstr("lossy"));
  EXPECT_EQ(data.split(Split::train)->size(), 45'000);
  EXPECT_EQ(data.split(Split::validation)->size(), 5'000);
  EXPECT_EQ(data.split(Split::test)->size(), 10'000);
  EXPECT_THAT(data.class_names, ElementsAre("airplane", "automobile", "bird", "cat", "deer", "dog",
                                            "frog", "horse", "ship", "truck"));
  std::vector<int> counts(10, 0);
  for (const Split split : {Split::train, Split::validation})
    for (const int32_t label : data.split(split)->labels) ++counts[static_cast<size_t>(label)];
  for (const int count : counts) EXPECT_EQ(count, 5'000);
  EXPECT_EQ(data.split(Split::train)->longest(), 1024);
}

}  // namespace
}  // namespace linnet
