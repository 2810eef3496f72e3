// The Pathfinder task of the Long Range Arena (Linsley et al. 2018; Tay et al. 2021): does one
// dashed path join the two discs of a picture?
#pragma once

#include <cstdint>
#include <string>

#include "core/config.h"
#include "data/kind.h"
#include "data/pixels.h"

namespace linnet {

struct PathfinderOptions : PixelOptions {
  std::string subset = "curv_contour_length_14";  // the folder of the released data that is read
  int64_t seed = 1;                               // of the order that the splits are cut from
  static void describe(ConfigDescription<PathfinderOptions>& d);
};

// Reads `folder`/SUBSET, or `folder` itself where metadata/ lies in it: the text files metadata/*
// have lines of fields between blanks, "imgs/0 sample_0.png 0 1 ...": folder, file, index, label (0
// or 1), whatever follows. Pictures are PNGs of one size. All pictures, in the order of the names
// of the files and their lines, are permuted by `seed`; the first 80 % are training, the next 10 %
// validation, the rest test. Pictures of no bytes, of which the released data have some, are left
// out before that, counted in the notes. Throws Error naming file and line for anything else.
ClassificationDataset read_pathfinder(const std::string& folder, const PathfinderOptions& options);
// Whether the folder has this layout, by its names.
bool is_pathfinder(const std::string& folder, const PathfinderOptions& options = {});

DataKind pathfinder_kind();

}  // namespace linnet
