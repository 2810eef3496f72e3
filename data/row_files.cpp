#include "data/row_files.h"

#include <algorithm>
#include <array>
#include <set>

#include "core/error.h"
#include "core/files.h"
#include "data/file_list.h"

namespace linnet {
namespace {

std::string_view extension_of(RowFormat format) {
  return format == RowFormat::tsv ? ".tsv" : format == RowFormat::csv ? ".csv" : ".jsonl";
}

// The files of each split: the lists of the recipe, one file for all, or those of a folder.
struct SplitFiles {
  std::array<std::vector<std::string>, 3> paths;
  bool unsplit = false;
};

SplitFiles find_files(const DataConfig& config, const std::string& extension) {
  SplitFiles found;
  const auto& options = config.options.as<RowFileOptions>();
  if (!options.FileLists::empty()) {
    found.paths = listed_files(config);
    return found;
  }
  if (!is_directory(config.path)) {
    found.paths[0] = expand_pattern(config.path);
    found.unsplit = true;
    return found;
  }
  bool any = false;
  for (const Split split : kSplits) {
    const std::string path = split_file(config.path, split, extension);
    if (path.empty()) continue;
    found.paths[static_cast<size_t>(split)] = {path};
    any = true;
  }
  require(any, Cause{ErrorCode::not_found, "data.path", config.path}, config.path,
          " holds none of train", extension, ", validation", extension,
          " (valid, val, dev) and test", extension,
          "; name the files in data.train, data.validation and data.test, or one file of "
          "all rows in data.path");
  return found;
}

ClassificationDataset load_rows(const DataConfig& config, RowFormat format) {
  const auto& options = config.options.as<RowFileOptions>();
  RowColumns columns;
  columns.text = options.text;
  columns.text_pair = options.text_pair;
  columns.label = options.label;
  if (const auto* table = config.options.find<TableOptions>()) columns.header = table->header;
  const SplitFiles files = find_files(config, std::string(extension_of(format)));
  BadRows bad(options.bad_rows == "skip");
  TextSplits texts;
  texts.unsplit = files.unsplit;
  texts.pairs = !columns.text_pair.empty();
  texts.layout =
      concat("labelled ", texts.pairs ? "pairs of texts" : "texts", " in ",
             extension_of(format).substr(1), files.unsplit ? ", split by a seed" : " files");
  for (const Split split : kSplits) {
    columns.label_may_be_missing = split == Split::test && !files.unsplit;
    for (const std::string& path : files.paths[static_cast<size_t>(split)])
      texts.of(split).push_back(read_rows(path, format, columns, bad));
  }
  return encode_texts(texts, config, bad);
}

DataKind kind_of(RowFormat format, const char* help, KindOptions options) {
  const std::string extension(extension_of(format));
  return {.name = extension.substr(1),
          .help = help,
          .options = std::move(options),
          .gives =
              LabelledData{
                  .load = [format](const DataConfig& config) { return load_rows(config, format); }},
          .likeness =
              [extension](const std::string& path) {
                const bool file = path.ends_with(extension) && !is_directory(path);
                const bool any = std::any_of(kSplits.begin(), kSplits.end(), [&](Split split) {
                  return !split_file(path, split, extension).empty();
                });
                return file || any ? Likeness::files : Likeness::none;
              },
          .source_keys = {"train", "validation", "test", "validation_fraction", "test_fraction",
                          "seed", "text", "text_pair", "label", "classes", "header", "bad_rows"},
          .check = check_labelled_text};
}

}  // namespace

void RowFileOptions::describe(ConfigDescription<RowFileOptions>& d) {
  d.group<LabelledTextOptions>();
  d.group<FileLists>();
  d.field("text", &RowFileOptions::text,
          "column of the text: its name, or in tables its number from 1");
  d.field("text_pair", &RowFileOptions::text_pair,
          "column of the second text of a pair; empty: one text a row");
  d.field("label", &RowFileOptions::label, "column of the class");
}

void TableOptions::describe(ConfigDescription<TableOptions>& d) {
  d.group<RowFileOptions>();
  d.field("header", &TableOptions::header, "the first row holds the names of the columns");
}

std::array<std::vector<std::string>, 3> listed_files(const DataConfig& config) {
  std::array<std::vector<std::string>, 3> paths;
  const auto lists = config.options.as<FileLists>().lists();
  std::set<std::string> seen;
  for (const Split split : kSplits) {
    const auto i = static_cast<size_t>(split);
    for (const std::string& pattern : *lists[i])
      for (const std::string& path : expand_pattern(join_path(config.path, pattern))) {
        require_usage(seen.insert(path).second,
                      Cause{ErrorCode::repeated, concat("data.", name_of(split)), path}, path,
                      " is listed twice in the splits of data; a text must not be both trained on "
                      "and evaluated");
        paths[i].push_back(path);
      }
  }
  return paths;
}

std::string split_file(const std::string& folder, Split split, const std::string& extension) {
  for (const char* name : split_names(split)) {
    std::string path = join_path(folder, name + extension);
    if (exists(path)) return path;
  }
  return "";
}

DataKind tsv_kind() {
  return kind_of(RowFormat::tsv, "labelled texts or pairs, fields between tabs, nothing quoted",
                 KindOptions(TableOptions()));
}

DataKind csv_kind() {
  return kind_of(RowFormat::csv, "labelled texts or pairs, fields between commas, quoted or not",
                 KindOptions(TableOptions()));
}

DataKind jsonl_kind() {
  return kind_of(RowFormat::jsonl, "labelled texts or pairs, a JSON object a line",
                 KindOptions(RowFileOptions()));
}

}  // namespace linnet
