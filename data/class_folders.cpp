#include "data/class_folders.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "core/utf8.h"
#include "data/labelled_text.h"

namespace linnet {
namespace {

constexpr uint64_t kMaxTextBytes = uint64_t{64} << 20;

std::vector<std::string> texts_in(const std::string& folder) {
  std::vector<std::string> names = file_system().list(folder);
  std::erase_if(names, [](const std::string& name) {
    return name.starts_with('.') || !name.ends_with(".txt");
  });
  return names;
}

// The folders with texts, by name.
std::vector<std::string> classes_in(const std::string& folder) {
  std::vector<std::string> names;
  if (!is_directory(folder)) return names;
  for (const std::string& name : file_system().list(folder)) {
    const std::string path = join_path(folder, name);
    if (!name.starts_with('.') && is_directory(path) && !texts_in(path).empty())
      names.push_back(name);
  }
  return names;
}

std::string split_folder(const std::string& folder, Split split) {
  for (const char* name : split_names(split)) {
    std::string path = join_path(folder, name);
    if (!classes_in(path).empty()) return path;
  }
  return "";
}

// Each text as a file of one row.
std::vector<RowFile> read_classes(const std::string& folder, BadRows& bad) {
  std::vector<RowFile> files;
  WorkProgress progress;
  for (const std::string& label : classes_in(folder)) {
    const std::string below = join_path(folder, label);
    for (const std::string& name : texts_in(below)) {
      interruption_point();
      RowFile file;
      file.path = join_path(below, name);
      TextRow row;
      row.label = label;
      row.text = read_file(file.path, kMaxTextBytes);
      try {
        require(!row.text.empty(), Cause{ErrorCode::malformed}, "the text is empty");
        require_utf8(row.text, file.path);
      } catch (const Error& error) {
        bad.add(file.path, 0, error.what());
        continue;
      }
      file.rows.push_back(std::move(row));
      files.push_back(std::move(file));
      if (progress.due()) progress.show(concat("reading ", below), 0, 0);
    }
  }
  return files;
}

ClassificationDataset load_folders(const DataConfig& config) {
  BadRows bad(config.options.as<LabelledTextOptions>().bad_rows == "skip");
  TextSplits texts;
  for (const Split split : kSplits) {
    const std::string folder = split_folder(config.path, split);
    if (!folder.empty()) texts.of(split) = read_classes(folder, bad);
  }
  texts.unsplit = std::all_of(texts.files.begin(), texts.files.end(),
                              [](const auto& files) { return files.empty(); });
  if (texts.unsplit) texts.of(Split::train) = read_classes(config.path, bad);
  require(!texts.unsplit || !texts.of(Split::train).empty(),
          Cause{ErrorCode::not_found, "data.path", config.path}, config.path,
          " holds no CLASS/*.txt, below train/ and test/ or directly");
  texts.layout = texts.unsplit ? "texts in folders by class, split by a seed"
                               : "texts in folders by split and class";
  return encode_texts(texts, config, bad);
}

// Folders of texts need not be classes, unless each split has nothing but these.
bool is_split_by_class(const std::string& path) {
  if (classes_in(join_path(path, "train")).size() < 2) return false;
  return std::all_of(kSplits.begin(), kSplits.end(), [&](Split split) {
    const auto names = split_names(split);
    return std::all_of(names.begin(), names.end(), [&](const char* name) {
      const std::string folder = join_path(path, name);
      return !is_directory(folder) || texts_in(folder).empty();
    });
  });
}

}  // namespace

DataKind folder_kind() {
  return {.name = "folder",
          .help = "labelled texts, a file each, in a folder for each class",
          .options = KindOptions(LabelledTextOptions()),
          .gives = LabelledData{.load = load_folders},
          .likeness =
              [](const std::string& path) {
                return is_split_by_class(path) ? Likeness::files : Likeness::none;
              },
          .source_keys = {"validation_fraction", "test_fraction", "seed", "classes", "bad_rows"},
          .check = check_labelled_text};
}

}  // namespace linnet
