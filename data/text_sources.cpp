// Finding the files of a text data set.
#include "data/text_sources.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/utf8.h"
#include "data/file_list.h"
#include "data/lines.h"
#include "data/preparation.h"

namespace linnet {
namespace {

constexpr uint64_t kSelfFileLimitBytes = uint64_t{1} << 20;

std::vector<SourceFile>& files_of(TextSources& sources, Split split) {
  return sources.splits[static_cast<size_t>(split)];
}
std::string& missing_of(TextSources& sources, Split split) {
  return sources.missing[static_cast<size_t>(split)];
}

bool has_extension(std::string_view path, std::initializer_list<std::string_view> extensions) {
  return std::any_of(extensions.begin(), extensions.end(),
                     [&](std::string_view extension) { return path.ends_with(extension); });
}

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

bool holds_run(const std::string& folder) {
  return exists(join_path(folder, "metrics.jsonl"));
}

// How many of `files` an automatic split gives to a share; at least one.
size_t share_of(size_t files, double fraction) {
  return std::max<size_t>(1,
                          static_cast<size_t>(std::lround(fraction * static_cast<double>(files))));
}

void split_by_file(std::vector<SourceFile> files, const DataConfig& config, TextSources& sources) {
  // A hash of the name spreads files of one folder over the splits whatever they are called.
  std::sort(files.begin(), files.end(), [](const SourceFile& a, const SourceFile& b) {
    const uint64_t hash_a = hash64(a.name), hash_b = hash64(b.name);
    return hash_a != hash_b ? hash_a < hash_b : a.name < b.name;
  });
  const size_t validation = share_of(files.size(), config.validation_fraction);
  const size_t test = share_of(files.size(), config.test_fraction);
  require(validation + test < files.size(),
          Cause{ErrorCode::out_of_range, "data.train", config.path}, "the ", files.size(),
          " files of ", config.path, " are too few to be split by file: validation would get ",
          validation, " and test ", test,
          ", nothing would be left for train; add files, or name those of each split, such as "
          "data.train=[a.txt] data.validation=[b.txt] data.test=[c.txt]");
  for (size_t i = 0; i < files.size(); ++i) {
    const Split split = i < validation          ? Split::validation
                        : i < validation + test ? Split::test
                                                : Split::train;
    files_of(sources, split).push_back(std::move(files[i]));
  }
  for (const Split split : kSplits)
    std::sort(files_of(sources, split).begin(), files_of(sources, split).end(),
              [](const SourceFile& a, const SourceFile& b) { return a.name < b.name; });
}

void cut_one_file(const std::string& path, const DataConfig& config, TextSources& sources) {
  const std::string text = read_file(path);
  // The end of the line that reaches a fraction of the file.
  const auto cut = [&](double fraction) {
    const auto wanted = static_cast<size_t>(fraction * static_cast<double>(text.size()));
    const size_t line_end = text.find('\n', wanted);
    return line_end == std::string::npos ? text.size() : line_end + 1;
  };
  const size_t first = cut(1 - config.validation_fraction - config.test_fraction);
  const size_t second = std::max(first, cut(1 - config.test_fraction));
  require(0 < first && first < second && second < text.size(),
          Cause{ErrorCode::out_of_range, "data.train", path}, path,
          " is too short to be cut at line ends into train, validation and test; add text, or name "
          "the files of each split: data.train, data.validation, data.test");
  const std::string name = file_name(path);
  files_of(sources, Split::train) = {{path, name + " (first part)", 0, first}};
  files_of(sources, Split::validation) = {{path, name + " (middle part)", first, second}};
  files_of(sources, Split::test) = {{path, name + " (last part)", second, text.size()}};
  sources.layout = "one text file, cut at line ends";
}

// The *.txt files of folder/<split name>/, for each split that has the folder.
void read_split_folders(const std::string& root, TextSources& sources) {
  for (const Split split : kSplits) {
    const std::string folder = join_path(root, name_of(split));
    if (!is_directory(folder)) {
      missing_of(sources, split) = concat("the folder ", folder, " does not exist");
      continue;
    }
    for (const std::string& name : files_below(folder))
      if (name.ends_with(".txt"))
        files_of(sources, split)
            .push_back({join_path(folder, name), concat(name_of(split), "/", name)});
    if (files_of(sources, split).empty())
      missing_of(sources, split) = concat("the folder ", folder, " holds no .txt file");
  }
}

bool any_files(const TextSources& sources) {
  return std::any_of(kSplits.begin(), kSplits.end(),
                     [&](Split split) { return !sources.files(split).empty(); });
}

// The lists of the recipe; none when all are empty.
std::vector<std::pair<Split, std::vector<std::string>>> lists_of(const DataConfig& config) {
  if (config.train.empty() && config.validation.empty() && config.test.empty()) return {};
  return {{Split::train, config.train},
          {Split::validation, config.validation},
          {Split::test, config.test}};
}

std::string not_listed(Split split) {
  return concat("the recipe lists no files in data.", name_of(split));
}

TextSources find_listed_files(const DataConfig& config) {
  TextSources sources;
  sources.layout = "listed files";
  const auto lists = lists_of(config);
  std::set<std::string> seen;
  for (const auto& [split, patterns] : lists) {
    if (patterns.empty()) missing_of(sources, split) = not_listed(split);
    for (const std::string& pattern : patterns)
      for (SourceFile& file : matching_files(join_path(config.path, pattern))) {
        require_usage(seen.insert(file.path).second,
                      Cause{ErrorCode::repeated, concat("data.", name_of(split)), file.path},
                      file.path,
                      " is listed twice in the splits of data; a text must not be both trained on "
                      "and evaluated");
        files_of(sources, split).push_back(std::move(file));
      }
  }
  return sources;
}

TextSources find_text(const DataConfig& config) {
  if (!lists_of(config).empty()) return find_listed_files(config);
  TextSources sources;
  std::vector<SourceFile> files;
  if (is_directory(config.path)) {
    const auto has = [&](Split split) {
      return is_directory(join_path(config.path, name_of(split)));
    };
    if (has(Split::train) && (has(Split::validation) || has(Split::test))) {
      sources.layout = "folders train, validation and test";
      read_split_folders(config.path, sources);
      require(any_files(sources), Cause{ErrorCode::not_found, "data.path", config.path},
              config.path, " has split folders without any .txt file");
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
    cut_one_file(files.front().path, config, sources);
    return sources;
  }
  sources.layout = "text files, split by file";
  split_by_file(std::move(files), config, sources);
  return sources;
}

TextSources find_pg19(const DataConfig& config) {
  require(is_directory(config.path), Cause{ErrorCode::not_found, "data.path", config.path},
          config.path, exists(config.path) ? " is a file" : " does not exist",
          "; kind pg19 needs a folder with train/, validation/ and test/");
  TextSources sources;
  sources.layout = exists(join_path(config.path, "metadata.csv"))
                       ? "PG-19 folders with metadata.csv"
                       : "PG-19 folders";
  read_split_folders(config.path, sources);
  require(any_files(sources), Cause{ErrorCode::malformed, "data.path", config.path}, config.path,
          " does not have the PG-19 layout: no train/*.txt, validation/*.txt or test/*.txt");
  return sources;
}

TextSources find_wikitext(const DataConfig& config) {
  require(is_directory(config.path), Cause{ErrorCode::not_found, "data.path", config.path},
          config.path, exists(config.path) ? " is a file" : " does not exist",
          "; kind wikitext needs a folder with wiki.train.tokens and the like");
  const auto name_in = [](Split split, std::string_view form) {
    const std::string_view stem = split == Split::validation ? "valid" : name_of(split);
    return form == "txt" ? concat(stem, ".txt") : concat("wiki.", stem, ".", form);
  };
  const bool words = config.tokenizer.kind == "word";
  std::vector<std::string_view> forms = {"raw", "tokens", "txt"};
  if (words) forms = {"tokens", "txt", "raw"};
  for (const std::string_view form : forms) {
    TextSources sources;
    sources.wikitext = true;
    sources.layout = form == "raw" ? "WikiText raw" : "WikiText tokens";
    for (const Split split : kSplits) {
      const std::string name = name_in(split, form), path = join_path(config.path, name);
      if (exists(path))
        files_of(sources, split) = {{path, name}};
      else
        missing_of(sources, split) = concat(path, " does not exist");
    }
    if (!any_files(sources)) continue;
    if (!words && form != "raw")
      sources.warnings.push_back(
          concat(config.path, " holds WikiText with words already replaced by <unk>; the ",
                 config.tokenizer.kind, " tokenizer is meant for the raw files"));
    return sources;
  }
  throw Error({ErrorCode::not_found, "data.path", config.path},
              concat(config.path,
                     " holds no WikiText file (wiki.{train,valid,test}.tokens or .raw, or "
                     "{train,valid,test}.txt)"));
}

// Names of folders that a checkout's .gitignore leaves out whole: lines such as "/build/".
std::set<std::string> ignored_folders(const std::string& root) {
  std::set<std::string> ignored;
  const std::string path = join_path(root, ".gitignore");
  if (!exists(path)) return ignored;
  const std::string text = read_file(path, kSelfFileLimitBytes);
  for (TextLines lines(without_byte_order_mark(text)); lines.next();) {
    std::string_view name = lines.line();
    if (name.starts_with('/')) name.remove_prefix(1);
    if (name.ends_with('/')) ignored.emplace(name.substr(0, name.size() - 1));
  }
  return ignored;
}

bool is_script(const std::string& path) {
  std::array<char, 2> start{};
  return File(path, OpenMode::read).read(start) == 2 && start[0] == '#' && start[1] == '!';
}

TextSources find_self(const DataConfig& config) {
  const std::string root = config.path.empty() ? "." : config.path;
  const auto ignored = ignored_folders(root);
  const auto enter = [&](const std::string& folder) {
    return !ignored.contains(file_name(folder)) && !holds_run(join_path(root, folder));
  };
  TextSources sources;
  sources.layout = "text files of a source checkout";
  std::vector<SourceFile> files;
  for (const std::string& name : files_below(root, enter)) {
    const std::string path = join_path(root, name);
    const uint64_t bytes = file_bytes(path);
    if (bytes == 0 || bytes > kSelfFileLimitBytes) continue;
    const bool extension =
        has_extension(name, {".h", ".cpp", ".cu", ".md", ".yaml", ".txt", ".cmake", ".py"});
    const bool bare = file_name(name).find('.') == std::string::npos;
    if (extension || (bare && is_script(path))) files.push_back({path, name});
  }
  require(files.size() >= 3, Cause{ErrorCode::malformed, "data.path", root}, root,
          " does not look like a source checkout: ", files.size(),
          " text files found (.h .cpp .md .yaml .txt .cmake .py or scripts)");
  split_by_file(std::move(files), config, sources);
  return sources;
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

TextSources find_text_sources(const DataConfig& config) {
  if (config.kind == "text") return find_text(config);
  if (config.kind == "pg19") return find_pg19(config);
  if (config.kind == "wikitext") return find_wikitext(config);
  if (config.kind == "self") return find_self(config);
  throw UsageError({ErrorCode::conflict, "data.kind"},
                   concat("data of kind '", config.kind, "' is not text"));
}

void require_listed(const DataConfig& config, Split split) {
  for (const auto& [listed, files] : lists_of(config)) {
    require_usage(listed != split || !files.empty(),
                  Cause{ErrorCode::not_found, concat("data.", name_of(split))},
                  "the data set has no ", name_of(split), " split: ", not_listed(split));
  }
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

std::string read_document(const SourceFile& file) {
  std::string text = read_file(file.path);
  const size_t invalid = find_invalid_utf8(text);
  // Up to three bytes of an unfinished character at the very end are what a cut file leaves.
  const bool cut = invalid != std::string::npos && text.size() - invalid < 4 &&
                   (static_cast<unsigned char>(text[invalid]) & 0xC0u) == 0xC0u;
  require(!cut, Cause{ErrorCode::malformed, "", file.path}, file.path,
          ": the file is truncated: it ends inside a UTF-8 character at byte offset ", invalid);
  require_utf8(text, file.path);
  if (file.begin == 0 && file.end >= text.size()) return text;
  require(file.end <= text.size(), Cause{ErrorCode::conflict, "", file.path}, file.path, " has ",
          text.size(), " bytes, at least ", file.end,
          " were expected; it changed while it was being read");
  return text.substr(file.begin, file.end - file.begin);
}

}  // namespace linnet
