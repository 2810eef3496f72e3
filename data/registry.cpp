// The list of kinds of data, and how recipes find them.
#include "data/registry.h"

#include <algorithm>

#include "core/files.h"
#include "core/suggest.h"
#include "data/class_folders.h"
#include "data/glue.h"
#include "data/listops.h"
#include "data/lra_image.h"
#include "data/lra_text.h"
#include "data/pathfinder.h"
#include "data/pg19.h"
#include "data/row_files.h"
#include "data/self.h"
#include "data/text_files.h"
#include "data/wikitext.h"

namespace linnet {
namespace {

void add_to(std::vector<DataKind>& list, DataKind kind) {
  for (const DataKind& known : list) {
    require_usage(known.name != kind.name, "the kind of data '", kind.name,
                  "' is registered twice; choose another name");
  }
  const bool complete =
      kind.texts() != nullptr ? kind.texts()->find != nullptr : kind.examples()->load != nullptr;
  require_usage(complete && !kind.help.empty(), "the kind of data '", kind.name,
                "' is incomplete; it needs help, and a function that gives texts or examples");
  require_usage(kind.texts() == nullptr || kind.options.find<TextEncoding>() != nullptr,
                "the kind of data '", kind.name,
                "' gives texts, so its options must inherit from TextEncoding");
  list.push_back(std::move(kind));
}

std::vector<DataKind>& all() {
  static std::vector<DataKind> list = [] {
    std::vector<DataKind> result;
    add_to(result, text_kind());
    add_to(result, pg19_kind());
    add_to(result, wikitext_kind());
    add_to(result, self_kind());
    add_to(result, listops_kind());
    add_to(result, lra_text_kind());
    add_to(result, lra_image_kind());
    add_to(result, pathfinder_kind());
    add_to(result, glue_kind());
    add_to(result, tsv_kind());
    add_to(result, csv_kind());
    add_to(result, jsonl_kind());
    add_to(result, folder_kind());
    return result;
  }();
  return list;
}

}  // namespace

const std::vector<DataKind>& data_kinds() {
  return all();
}

const DataKind& find_data_kind(std::string_view name) {
  std::vector<std::string> names;
  for (const DataKind& kind : all()) {
    if (kind.name == name) return kind;
    names.push_back(kind.name);
  }
  throw UsageError({ErrorCode::unknown_name, "data.kind"},
                   concat("there is no kind of data '", name, "'; ", suggestion(name, names)));
}

void register_data_kind(DataKind kind) {
  add_to(all(), std::move(kind));
}

bool gives_labels(const DataConfig& config) {
  return find_data_kind(config.kind).examples() != nullptr;
}

std::string detect_data_kind(const std::string& path) {
  require(exists(path), Cause{ErrorCode::not_found, "", path}, path, " does not exist");
  const DataKind* found = nullptr;
  Likeness most = Likeness::none;
  for (const DataKind& kind : all()) {
    const Likeness likeness = kind.likeness ? kind.likeness(path) : Likeness::none;
    if (likeness <= most) continue;
    most = likeness;
    found = &kind;
  }
  require(found != nullptr, Cause{ErrorCode::malformed, "", path}, path,
          " is like no kind of data: name it by data.kind");
  return found->name;
}

bool says_which_data(std::string_view key) {
  return key == "kind" || key == "path" ||
         std::any_of(all().begin(), all().end(), [key](const DataKind& kind) {
           return std::count(kind.source_keys.begin(), kind.source_keys.end(), key) > 0;
         });
}

std::string paths_left_out() {
  std::string text;
  for (const DataKind& kind : all()) {
    if (!kind.without_path.empty())
      text += concat("; ", kind.name, " without it: ", kind.without_path);
  }
  return text;
}

}  // namespace linnet
