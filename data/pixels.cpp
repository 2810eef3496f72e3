#include "data/pixels.h"

#include <algorithm>
#include <vector>

#include "core/error.h"

namespace linnet {

void PixelOptions::set_up(ClassificationSplit& split) const {
  split.zero_is_pad = zero_is_pad;
  split.cls_drops_last = cls == "drop_last";
}

void PixelOptions::add(std::span<const uint8_t> grey, int32_t label, const std::string& name,
                       ClassificationSplit& split) const {
  const bool black =
      std::all_of(grey.begin(), grey.end(), [](uint8_t value) { return value == 0; });
  require(!black || !zero_is_pad, Cause{ErrorCode::conflict, "zero_is_pad", name}, name,
          " is black: with zero_is_pad none of its pixels is valid; set zero_is_pad to false");
  std::vector<int32_t> ids(grey.begin(), grey.end());
  if (!zero_is_pad)
    for (int32_t& id : ids) ++id;
  split.add(ids, label);
}

}  // namespace linnet
