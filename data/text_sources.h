// Which files make up each split of a text data set, and what the kinds that find them share.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
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
  std::vector<SourceFile>& files(Split split) { return splits[static_cast<size_t>(split)]; }
  std::string& why_missing(Split split) { return missing[static_cast<size_t>(split)]; }
  // Whether any split has files.
  bool any() const;
};

// The files of a kind that gives texts; an archive in config.path is unpacked into the cache.
// Throws Error with one sentence naming what is missing.
TextSources find_text_sources(const DataConfig& config);

// Throws UsageError for lists of files that leave out the split, which find_text_sources() reports
// as missing.
void require_listed(const DataConfig& config, Split split);

// Why a split of listed files is missing.
std::string not_listed(Split split);

// For kinds that find their files by what folders hold:

bool has_extension(std::string_view path, std::initializer_list<std::string_view> extensions);
// Whether a folder is that of a training run, which writes texts of its own.
bool holds_run(const std::string& folder);
// Splits `files` of `path` in an order of hashes of their names: the first ones go to validation,
// the next to test, at least one each. Throws Error when none is left for train.
void split_by_file(std::vector<SourceFile> files, const std::string& path,
                   const SplitFractions& fractions, TextSources& sources);
// The *.txt files of train/, validation/ and test/ below `root`.
void read_split_folders(const std::string& root, TextSources& sources);

// A hash of the names, contents and parts of a split's files; where they lie does not matter. ""
// for a split without files. Throws Error when one cannot be read.
std::string fingerprint_of(const TextSources& sources, Split split);

}  // namespace linnet
