// Which files make up each split of a text data set: layouts, lists and automatic splits.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "data/data_config.h"

namespace linnet {

enum class Split : uint8_t { train, validation, test };
inline constexpr std::array<Split, 3> kSplits = {Split::train, Split::validation, Split::test};

// "train", "validation" or "test".
std::string_view name_of(Split split);
// The inverse, which also takes "valid" and "dev"; throws UsageError for other names.
Split split_from_name(std::string_view name);

// A document: a file, or the bytes [begin, end) of it.
struct SourceFile {
  std::string path;
  std::string name;  // relative to the data set, wherever that lies
  uint64_t begin = 0;
  uint64_t end = std::numeric_limits<uint64_t>::max();
};

struct TextSources {
  std::string layout;  // one phrase for people: "PG-19 folders", "WikiText tokens", ...
  std::array<std::vector<SourceFile>, 3> splits;
  // Why a split has no files; empty for splits that have.
  std::array<std::string, 3> missing;
  // Each line end counts as a word, and files are checked against WikiText's published counts.
  bool wikitext = false;
  std::vector<std::string> warnings;

  const std::vector<SourceFile>& files(Split split) const {
    return splits[static_cast<size_t>(split)];
  }
};

// Finds the files of kinds text, pg19, wikitext and self:
// Folders that hold a training run are left out: it writes texts of its own.
// - text: the lists of the recipe; or one file, cut at line ends into train, validation and test
//   (in this order, the last two of the size their fractions say); or a folder with train/ and
//   validation/ or test/ below; or all files of a folder (*.txt and *.md, else all) or pattern,
//   split by file: ordered by a hash of the relative path, the first ones to validation, the next
//   to test, at least one each.
// - pg19: train/, validation/ and test/ with *.txt.
// - wikitext: wiki.{train,valid,test}.tokens or .raw, or {train,valid,test}.txt.
// - self: the text files of a source checkout, split by file in the same way.
// Throws Error with one sentence naming what is missing.
TextSources find_text_sources(const DataConfig& config);

// Throws UsageError for lists of files that leave out the split, which find_text_sources() reports
// as missing.
void require_listed(const DataConfig& config, Split split);

// A hash of the names, contents and parts of a split's files; where they lie does not matter. ""
// for a split without files. Throws Error when one cannot be read.
std::string fingerprint_of(const TextSources& sources, Split split);

// The text of a document. Throws Error naming the file when it is missing, shorter than its part,
// or not valid UTF-8 (with the offset; a cut last character is called a truncated file).
std::string read_document(const SourceFile& file);

}  // namespace linnet
