// A small generator of Pathfinder pictures, for tests: the layout of the released data, and
// pictures whose label can be seen, but not their statistics.
#pragma once

#include <cmath>
#include <string>

#include "core/random.h"
#include "tests/data/image_files.h"
#include "tests/data/temporary_folder.h"

namespace linnet::test {

// 32 x 32 pixels: two dashed arcs, and discs on two of their four ends, those of one arc (label 1)
// or one of each (label 0).
inline Image pathfinder_picture(int64_t index, bool one_path) {
  constexpr size_t kSide = 32;
  Image image{int64_t{kSide}, int64_t{kSide}, 1, std::vector<uint8_t>(kSide * kSide, 0)};
  const RandomKey key{7, static_cast<uint64_t>(index), hash_name("pathfinder picture")};
  const auto word = key.words(0);
  const auto dot = [&](double x, double y, double radius, uint8_t value) {
    for (size_t row = 0; row < kSide; ++row)
      for (size_t column = 0; column < kSide; ++column)
        if (std::hypot(static_cast<double>(column) - x, static_cast<double>(row) - y) <= radius)
          image.values[row * kSide + column] = value;
  };
  constexpr double kStart = 0.3, kSpan = 2.4, kRadius = 9;
  const double bend = 0.5 + word[0] % 100 / 200.0;
  for (int arc = 0; arc < 2; ++arc) {
    const auto point = [&](double at, double radius, uint8_t value) {
      const double angle = kStart + kSpan * at, middle = arc == 0 ? 10 : 26;
      dot(15.5 + kRadius * std::cos(angle), middle - bend * kRadius * std::sin(angle), radius,
          value);
    };
    for (int dash = 0; dash < 14; ++dash)
      if (dash % 2 == 0)
        for (int step = 0; step < 4; ++step) point((dash + step / 4.0) / 14, 0.6, 180);
    if (one_path ? arc == 0 : true) point(0, 1.5, 255);
    if (one_path && arc == 0) point(1, 1.5, 255);
  }
  return image;
}

// Writes `count` pictures to `folder`/curv_contour_length_14, 10 a metadata file; every
// `empty_every`-th one (0: none) has no bytes. The label of picture i is i % 2.
inline void write_pathfinder(const TemporaryFolder& folder, int count, int empty_every = 0) {
  const std::string root = "curv_contour_length_14/";
  std::string metadata;
  for (int i = 0; i < count; ++i) {
    const bool empty = empty_every > 0 && i % empty_every == empty_every - 1;
    const std::string name = concat("imgs/", i / 10, "/sample_", i % 10, ".png");
    folder.write(root + name, empty ? "" : to_png(pathfinder_picture(i, i % 2 == 1)));
    metadata +=
        concat("imgs/", i / 10, " sample_", i % 10, ".png ", i % 10, " ", i % 2, " 1.0 14 2 0.5\n");
    if (i % 10 == 9 || i + 1 == count) {
      folder.write(concat(root, "metadata/", i / 10, ".npy"), metadata);
      metadata.clear();
    }
  }
}

}  // namespace linnet::test
