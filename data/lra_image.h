// The Image task of the Long Range Arena (Tay et al. 2021): CIFAR-10 in grey, one token per pixel.
#pragma once

#include <cstdint>
#include <string>

#include "core/config.h"
#include "data/hold_out.h"
#include "data/kind.h"
#include "data/pixels.h"

namespace linnet {

struct LraImageOptions : PixelOptions, HoldOutOptions {
  static void describe(ConfigDescription<LraImageOptions>& d);
};

// Reads one of two layouts of `folder`:
// - CIFAR-10's binary batches, data_batch*.bin and test_batch*.bin, also compressed (.xz, .gz):
//   3,073 bytes an image, its label and 1,024 values each of red, green, blue. Validation is the
//   last tenth of the training images in their order.
// - train/CLASS/*.png, .jpg or .jpeg and test/CLASS/..., all of one size: labels are the places of
//   the class names in their order. Validation is validation/, valid/ or dev/ where there is one,
//   else a tenth of the training images, drawn with `seed` (the files lie class by class).
// Missing splits stay missing. Throws Error naming a missing folder, a damaged file with the image
// in it, or a class that training does not have.
ClassificationDataset read_lra_image(const std::string& folder, const LraImageOptions& options);
// Whether the folder has one of these layouts, by its names.
bool is_lra_image(const std::string& folder);

DataKind lra_image_kind();

}  // namespace linnet
