// Images: values, sizes, kinds, and damage.
#include "data/image.h"

#include <gmock/gmock.h>

#include <chrono>
#include <cmath>

#include "core/random.h"
#include "core/sanitizers.h"
#include "tests/data/image_files.h"
#include "tests/data/temporary_folder.h"

namespace linnet {
namespace {

using test::causes_of;
using test::message_of;
using test::peak_mib;
using test::to_jpeg;
using test::to_png;
using testing::HasSubstr;

// Noise, which no format packs well.
Image noise(int64_t width, int64_t height, int channels) {
  Image image{width, height, channels};
  const RandomKey key{1, 2, 3};
  for (int64_t i = 0; i < width * height * channels; ++i)
    image.values.push_back(static_cast<uint8_t>(key.words(static_cast<uint64_t>(i))[0]));
  return image;
}

TEST(Image, PngsRoundTrip) {
  for (const int channels : {1, 3}) {
    const Image image = noise(33, 7, channels), back = decode_image(to_png(image), "a.png");
    EXPECT_EQ(back.width, 33);
    EXPECT_EQ(back.height, 7);
    EXPECT_EQ(back.channels, channels);
    EXPECT_EQ(back.values, image.values);
  }
}

TEST(Image, JpegsKeepFlatColours) {
  for (const bool progressive : {false, true}) {
    Image image{40, 24, 3};
    for (int i = 0; i < 40 * 24; ++i) image.values.insert(image.values.end(), {200, 90, 30});
    const Image back = decode_image(to_jpeg(image, 100, progressive), "a.jpg");
    ASSERT_EQ(back.values.size(), image.values.size());
    EXPECT_EQ(back.channels, 3);
    for (size_t i = 0; i < back.values.size(); ++i)
      EXPECT_NEAR(back.values[i], image.values[i], 2) << i;
    Image grey{16, 8, 1, std::vector<uint8_t>(16 * 8, 77)};
    const Image grey_back = decode_image(to_jpeg(grey, 100, progressive), "a.jpg");
    EXPECT_EQ(grey_back.channels, 1);
    EXPECT_EQ(grey_back.values, grey.values);
  }
}

TEST(Image, GreyValuesFollowTheFormula) {
  EXPECT_EQ(grey_value(0, 0, 0), 0);
  EXPECT_EQ(grey_value(255, 255, 255), 255);
  EXPECT_EQ(grey_value(255, 0, 0), 76);  // 255.5 x 0.2989 = 76.37
  EXPECT_EQ(grey_value(0, 255, 0), 149);
  EXPECT_EQ(grey_value(0, 0, 255), 29);
  for (int i = 0; i < 3000; ++i) {
    const int r = i * 7 % 256, g = i * 31 % 256, b = i * 101 % 256;
    const double exact = 255.5 * (0.2989 * r + 0.5870 * g + 0.1140 * b) / 255;
    EXPECT_EQ(grey_value(r, g, b), static_cast<int>(std::floor(exact + 1e-9))) << r << g << b;
  }
  const Image image = noise(5, 3, 3);
  const auto grey = grey_values(image);
  ASSERT_EQ(grey.size(), 15u);
  EXPECT_EQ(grey[14], grey_value(image.values[42], image.values[43], image.values[44]));
  const Image plain = noise(5, 3, 1);
  EXPECT_EQ(grey_values(plain), plain.values);
}

TEST(Image, OtherFilesAndSizesAreRefusedByName) {
  const auto message = [](const std::string& bytes) {
    const std::string text = message_of([&] { decode_image(bytes, "some/file"); });
    EXPECT_EQ(causes_of([&] { decode_image(bytes, "some/file"); }).find("nothing"),
              std::string::npos);
    EXPECT_THAT(text, HasSubstr("some/file: "));
    EXPECT_EQ(text.find('\n'), text.npos);
    return text;
  };
  EXPECT_THAT(message(""), HasSubstr("empty"));
  EXPECT_THAT(message("GIF89a"), HasSubstr("neither a PNG nor a JPEG"));
  const Image wide{4097, 1, 1, std::vector<uint8_t>(4097, 9)};
  EXPECT_THAT(message(to_png(wide)), HasSubstr("4097 x 1 pixels"));
  EXPECT_THAT(message(to_jpeg(wide)), HasSubstr("4097 x 1 pixels"));
}

// Cut or changed anywhere: read or refused, quickly, and in bounds.
void expect_safe(const std::string& bytes, const std::string& name) {
  const auto start = std::chrono::steady_clock::now();
  try {
    const Image image = decode_image(bytes, name);
    EXPECT_EQ(static_cast<int64_t>(image.values.size()),
              image.width * image.height * image.channels);
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(name));
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_LT(seconds.count(), 1) << name;
}

TEST(Image, AFlippedByteIsReadOrRefused) {
  const double before_mib = peak_mib();
  const std::string png = to_png(noise(36, 36, 3));
  ASSERT_NEAR(static_cast<double>(png.size()), 4096, 200);
  const std::string jpeg = to_jpeg(noise(32, 32, 3));
  const std::string progressive = to_jpeg(noise(32, 32, 3), 80, true);
  for (const std::string& whole : {png, jpeg, progressive}) {
    for (size_t at = 0; at < whole.size(); ++at) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 0xff);
      expect_safe(damaged, concat("flipped-", at));
    }
  }
  // AddressSanitizer keeps what was freed.
  EXPECT_LT(kAddressSanitizer ? 0 : peak_mib() - before_mib, 256);
}

TEST(Image, TruncationsAreRefused) {
  for (const std::string& whole :
       {to_png(noise(20, 20, 3)), to_jpeg(noise(20, 20, 3)), to_jpeg(noise(20, 20, 1), 90, true)}) {
    for (size_t length = 0; length < whole.size(); ++length) {
      EXPECT_EQ(causes_of([&] { decode_image(whole.substr(0, length), "cut"); }),
                "malformed at cut")
          << length << " of " << whole.size();
    }
  }
}

}  // namespace
}  // namespace linnet
