#include "data/text_files.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/files.h"
#include "data/file_list.h"

namespace linnet {
namespace {

struct TextFilesOptions : FileLists, SplitFractions, TextEncoding {
  static void describe(ConfigDescription<TextFilesOptions>& d) {
    d.group<FileLists>();
    d.group<SplitFractions>();
    d.group<TextEncoding>();
  }
};

// The files that a pattern matches, called by their place below its folder: a data set is the same
// one from wherever it is named, and an automatic split of it too.
std::vector<SourceFile> matching_files(const std::string& pattern) {
  const std::string folder = fixed_folder(pattern);
  const size_t skipped = folder.size() + (folder.empty() || folder == "/" ? 0 : 1);
  std::vector<SourceFile> files;
  for (const std::string& path : expand_pattern(pattern)) {
    files.push_back({path, path.substr(skipped)});
  }
  return files;
}

void cut_one_file(const std::string& path, const SplitFractions& fractions, TextSources& sources) {
  File file(path, OpenMode::read);
  const uint64_t size = file.bytes();
  // The end of the line that reaches a fraction of the file.
  const auto cut = [&](double fraction) {
    auto at = static_cast<uint64_t>(fraction * static_cast<double>(size));
    file.seek(at);
    std::string piece(1 << 16, '\0');
    while (const size_t count = file.read(piece)) {
      const size_t line_end = std::string_view(piece).substr(0, count).find('\n');
      if (line_end != std::string::npos) return at + line_end + 1;
      at += count;
    }
    return size;
  };
  const uint64_t first = cut(1 - fractions.validation_fraction - fractions.test_fraction);
  const uint64_t second = std::max(first, cut(1 - fractions.test_fraction));
  require(0 < first && first < second && second < size,
          Cause{ErrorCode::out_of_range, "data.train", path}, path,
          " is too short to be cut at line ends into train, validation and test; add text, or name "
          "the files of each split: data.train, data.validation, data.test");
  const std::string name = file_name(path);
  sources.files(Split::train) = {{path, name + " (first part)", 0, first}};
  sources.files(Split::validation) = {{path, name + " (middle part)", first, second}};
  sources.files(Split::test) = {{path, name + " (last part)", second, size}};
  sources.layout = "one text file, cut at line ends";
}

TextSources find_listed_files(const DataConfig& config) {
  TextSources sources;
  sources.layout = "listed files";
  const auto lists = config.options.as<FileLists>().lists();
  std::set<std::string> seen;
  for (const Split split : kSplits) {
    const std::vector<std::string>& patterns = *lists[static_cast<size_t>(split)];
    if (patterns.empty()) sources.why_missing(split) = not_listed(split);
    for (const std::string& pattern : patterns)
      for (SourceFile& file : matching_files(join_path(config.path, pattern))) {
        require_usage(seen.insert(file.path).second,
                      Cause{ErrorCode::repeated, concat("data.", name_of(split)), file.path},
                      file.path,
                      " is listed twice in the splits of data; a text must not be both trained on "
                      "and evaluated");
        sources.files(split).push_back(std::move(file));
      }
  }
  return sources;
}

// - The lists of the recipe; or
// - one file, cut at line ends into train, validation and test in this order; or
// - a folder with train/ and validation/ or test/ below; or
// - all files of a folder (*.txt and *.md, else all) or pattern, split by file. Folders that hold a
//   training run are left out.
TextSources find_text(const DataConfig& config) {
  const auto& options = config.options.as<TextFilesOptions>();
  if (!options.FileLists::empty()) return find_listed_files(config);
  TextSources sources;
  std::vector<SourceFile> files;
  if (is_directory(config.path)) {
    const auto has = [&](Split split) {
      return is_directory(join_path(config.path, name_of(split)));
    };
    if (has(Split::train) && (has(Split::validation) || has(Split::test))) {
      sources.layout = "folders train, validation and test";
      read_split_folders(config.path, sources);
      require(sources.any(), Cause{ErrorCode::not_found, "data.path", config.path}, config.path,
              " has split folders without any .txt file");
      return sources;
    }
    const auto names = files_below(config.path, [&](const std::string& folder) {
      return !holds_run(join_path(config.path, folder));
    });
    const auto is_text = [](const std::string& name) {
      return has_extension(name, {".txt", ".md"});
    };
    const bool only_text = std::any_of(names.begin(), names.end(), is_text);
    for (const std::string& name : names)
      if (!only_text || is_text(name)) files.push_back({join_path(config.path, name), name});
    require(!files.empty(), Cause{ErrorCode::not_found, "data.path", config.path}, "the folder ",
            config.path, " holds no files");
  } else {
    files = matching_files(config.path);
  }
  if (files.size() == 1) {
    cut_one_file(files.front().path, options, sources);
    return sources;
  }
  sources.layout = "text files, split by file";
  split_by_file(std::move(files), config.path, options, sources);
  return sources;
}

}  // namespace

DataKind text_kind() {
  return {.name = "text",
          .help = "text files: one file, a folder, a pattern, or a list for each split",
          .options = KindOptions(TextFilesOptions()),
          .gives = TextData{.find = find_text},
          .likeness = [](const std::string&) { return Likeness::anything; },
          .source_keys = {"train", "validation", "test", "validation_fraction", "test_fraction"}};
}

}  // namespace linnet
