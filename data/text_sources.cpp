// What the kinds of text share: names of splits, automatic splits, reading and hashing of files.
#include "data/text_sources.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "data/archive.h"
#include "data/file_list.h"
#include "data/preparation.h"
#include "data/registry.h"
#include "data/token_cache.h"

namespace linnet {
namespace {

// How many of `files` an automatic split gives to a share; at least one.
size_t share_of(size_t files, double fraction) {
  return std::max<size_t>(1,
                          static_cast<size_t>(std::lround(fraction * static_cast<double>(files))));
}

}  // namespace

std::string_view name_of(Split split) {
  constexpr std::array<std::string_view, 3> kNames = {"train", "validation", "test"};
  return kNames[static_cast<size_t>(split)];
}

Split split_from_name(std::string_view name) {
  for (const Split split : kSplits)
    if (name == name_of(split)) return split;
  if (name == "valid" || name == "dev") return Split::validation;
  throw UsageError({ErrorCode::unknown_name, "evaluate.split"},
                   concat("unknown split '", name, "'; the splits are train, validation and test"));
}

bool TextSources::any() const {
  return std::any_of(splits.begin(), splits.end(),
                     [](const std::vector<SourceFile>& files) { return !files.empty(); });
}

bool has_extension(std::string_view path, std::initializer_list<std::string_view> extensions) {
  return std::any_of(extensions.begin(), extensions.end(),
                     [&](std::string_view extension) { return path.ends_with(extension); });
}

bool holds_run(const std::string& folder) {
  return exists(join_path(folder, "metrics.jsonl"));
}

void split_by_file(std::vector<SourceFile> files, const std::string& path,
                   const SplitFractions& fractions, TextSources& sources) {
  // A hash of the name spreads files of one folder over the splits whatever they are called.
  std::sort(files.begin(), files.end(), [](const SourceFile& a, const SourceFile& b) {
    const uint64_t hash_a = hash64(a.name), hash_b = hash64(b.name);
    return hash_a != hash_b ? hash_a < hash_b : a.name < b.name;
  });
  const size_t validation = share_of(files.size(), fractions.validation_fraction);
  const size_t test = share_of(files.size(), fractions.test_fraction);
  require(validation + test < files.size(), Cause{ErrorCode::out_of_range, "data.train", path},
          "the ", files.size(), " files of ", path,
          " are too few to be split by file: validation would get ", validation, " and test ", test,
          ", nothing would be left for train; add files, or name those of each split, such as "
          "data.train=[a.txt] data.validation=[b.txt] data.test=[c.txt]");
  for (size_t i = 0; i < files.size(); ++i) {
    const Split split = i < validation          ? Split::validation
                        : i < validation + test ? Split::test
                                                : Split::train;
    sources.files(split).push_back(std::move(files[i]));
  }
  for (const Split split : kSplits)
    std::sort(sources.files(split).begin(), sources.files(split).end(),
              [](const SourceFile& a, const SourceFile& b) { return a.name < b.name; });
}

void read_split_folders(const std::string& root, TextSources& sources) {
  for (const Split split : kSplits) {
    const std::string folder = join_path(root, name_of(split));
    if (!is_directory(folder)) {
      sources.why_missing(split) = concat("the folder ", folder, " does not exist");
      continue;
    }
    for (const std::string& name : files_below(folder))
      if (name.ends_with(".txt"))
        sources.files(split).push_back(
            {join_path(folder, name), concat(name_of(split), "/", name)});
    if (sources.files(split).empty())
      sources.why_missing(split) = concat("the folder ", folder, " holds no .txt file");
  }
}

TextSources find_text_sources(const DataConfig& config) {
  const TextData* texts = find_data_kind(config.kind).texts();
  require_usage(texts != nullptr, Cause{ErrorCode::conflict, "data.kind"}, "data of kind '",
                config.kind, "' is not text");
  DataConfig local = config;
  local.path = unpacked(config.path, token_cache_folder());
  return texts->find(local);
}

std::string not_listed(Split split) {
  return concat("the recipe lists no files in data.", name_of(split));
}

void require_listed(const DataConfig& config, Split split) {
  const FileLists* lists = config.options.find<FileLists>();
  if (lists == nullptr || lists->empty()) return;
  require_usage(!lists->lists()[static_cast<size_t>(split)]->empty(),
                Cause{ErrorCode::not_found, concat("data.", name_of(split))},
                "the data set has no ", name_of(split), " split: ", not_listed(split));
}

std::string fingerprint_of(const TextSources& sources, Split split) {
  if (sources.files(split).empty()) return "";
  std::string inputs;
  Preparation preparation(concat("hashing ", name_of(split)), sources.files(split));
  for (const SourceFile& file : sources.files(split)) {
    preparation.begin(file);
    inputs += concat(file.name, '\n', hash128_hex_of_file(file.path), ' ', file.begin, ' ',
                     file.end, '\n');
  }
  return hash128_hex(inputs);
}

}  // namespace linnet
