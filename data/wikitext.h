// The published sizes of WikiText's files, and the check of a file against them.
#pragma once

#include <cstdint>
#include <string>

#include "data/text_sources.h"

namespace linnet {

// Compares a WikiText file with the published ones (Merity et al. 2016). `words` counts white-space
// separated words plus one <eos> per line. A file with the line count of a published file must have
// its word count: throws Error otherwise. A file that lacks its last line end is truncated: throws
// Error. Returns a warning for other sizes, "" for a complete file.
std::string check_wikitext(Split split, const std::string& path, const std::string& text,
                           int64_t words);

}  // namespace linnet
