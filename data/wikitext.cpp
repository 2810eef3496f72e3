// Published sizes of WikiText.
#include "data/wikitext.h"

#include <algorithm>

#include "core/error.h"

namespace linnet {
namespace {

struct Published {
  Split split;
  int64_t lines, words;  // words with one <eos> per line
  const char* name;
};

// Validation and test are the same text in WikiText-2 and WikiText-103, tokens and raw.
constexpr Published kPublished[] = {
    {Split::train, 1'801'350, 103'227'021, "WikiText-103 train"},
    {Split::train, 36'718, 2'088'628, "WikiText-2 train"},
    {Split::validation, 3'760, 217'646, "WikiText validation"},
    {Split::test, 4'358, 245'569, "WikiText test"},
};

}  // namespace

std::string check_wikitext(Split split, const std::string& path, const std::string& text,
                           int64_t words) {
  require(text.ends_with('\n'), Cause{ErrorCode::malformed, "", path}, path,
          ": the file is truncated: a WikiText file ends with a line end, this one inside a line");
  const auto lines = static_cast<int64_t>(std::count(text.begin(), text.end(), '\n'));
  std::string known;
  for (const Published& published : kPublished) {
    if (published.split != split) continue;
    if (published.lines != lines) {
      known += concat(known.empty() ? "" : ", ", published.name, " ", published.lines);
      continue;
    }
    require(words == published.words, Cause{ErrorCode::malformed, "", path}, path, " has the ",
            lines, " lines of ", published.name, " but ", words, " words with <eos> instead of ",
            published.words, "; the file was altered, fetch it again");
    return "";
  }
  return concat("the ", name_of(split), " split has ", lines,
                " lines, so it is not a complete published file (lines: ", known,
                "); its perplexity is not comparable with published ones");
}

}  // namespace linnet
