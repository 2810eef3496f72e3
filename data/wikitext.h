// Kind wikitext: WikiText-2 and -103 (Merity et al. 2016), with the published sizes of their files.
#pragma once

#include <cstdint>
#include <string>

#include "data/kind.h"
#include "data/words.h"

namespace linnet {

DataKind wikitext_kind();

// Compares a WikiText file with the published ones (Merity et al. 2016), whose words are those
// separated by white space plus one <eos> per line. A file with the line count of a published file
// must have its word count: throws Error otherwise. A file that lacks its last line end is
// truncated: throws Error. Returns a warning for other sizes, "" for a complete file.
std::string check_wikitext(Split split, const std::string& path, const TextCounts& counts);

}  // namespace linnet
