// PNG and JPEG images in memory, and their grey values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace linnet {

inline constexpr int64_t kMaxImageSide = 4096;

// Rows from the top; a pixel's channels follow each other.
struct Image {
  int64_t width = 0, height = 0;
  int channels = 1;  // 1: grey; 3: red, green, blue
  std::vector<uint8_t> values{};
};

// The image of a PNG or JPEG file, whichever the first bytes say; `name` is for messages. Palettes
// become colours, 16 bits are scaled to 8, transparency is left out; gamma and colour profiles mean
// nothing. Throws Error naming the file when the bytes are no such image, are damaged or truncated,
// or for more than kMaxImageSide pixels a side, CMYK, and JPEGs of more than 100 scans.
Image decode_image(std::string_view bytes, const std::string& name);

// One value a pixel: grey images as they are, colours by
// trunc(255.5 (0.2989 R + 0.5870 G + 0.1140 B) / 255), TensorFlow's formula, in exact arithmetic.
std::vector<uint8_t> grey_values(const Image& image);
uint8_t grey_value(int red, int green, int blue);

}  // namespace linnet
