// Images as sequences: a token per pixel, rows from the top.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "core/config.h"
#include "data/classification.h"

namespace linnet {

// How pixels become a sequence, for images of any task.
struct PixelOptions {
  // true: ids are the grey values 0-255, and black pixels count as padding, as in the published
  // code. false: ids are the grey values + 1, and every pixel is valid.
  bool zero_is_pad = true;
  // drop_last: a CLS token takes the room of the last pixel, as in the published code.
  std::string cls = "drop_last";

  // Vocabulary with a CLS id of its own: 257 or 258.
  int32_t vocabulary() const { return zero_is_pad ? 257 : 258; }
  void set_up(ClassificationSplit& split) const;
  // Appends an example; `grey` one value per pixel. Throws Error naming `name` when zero_is_pad
  // leaves no valid pixel.
  void add(std::span<const uint8_t> grey, int32_t label, const std::string& name,
           ClassificationSplit& split) const;
};

// The fields of PixelOptions, for options that inherit from them.
template <typename T>
void describe_pixels(ConfigDescription<T>& d) {
  d.field("zero_is_pad", static_cast<bool T::*>(&PixelOptions::zero_is_pad),
          "true: ids are the grey values and black pixels count as padding, as in the published "
          "code; false: ids are the grey values + 1, all valid");
  d.choice("cls", static_cast<std::string T::*>(&PixelOptions::cls), {"drop_last", "keep"},
           "where a CLS token finds no room: drop_last takes that of the last pixel, keep refuses");
}

}  // namespace linnet
