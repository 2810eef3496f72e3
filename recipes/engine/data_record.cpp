#include "recipes/engine/data_record.h"

#include <algorithm>
#include <filesystem>

#include "core/files.h"
#include "data/file_list.h"
#include "data/registry.h"

namespace linnet {
namespace {

std::string absolute(const std::string& path) {
  std::string whole = std::filesystem::absolute(path).lexically_normal().string();
  if (whole.size() > 1 && whole.back() == '/') whole.pop_back();
  return whole;
}

// The files and folders that a configuration names, of patterns the folders below which they match.
std::vector<std::string> places_of(const DataConfig& config) {
  std::vector<std::string> named = {config.path};
  const FileLists* files = config.options.find<FileLists>();
  if (files != nullptr && config.path.empty()) {
    for (const auto* list : files->lists()) named.insert(named.end(), list->begin(), list->end());
  }
  std::vector<std::string> places;
  for (const std::string& name : named) {
    if (name.empty()) continue;
    places.push_back(name.find_first_of("*?") == std::string::npos ? name : fixed_folder(name));
  }
  return places;
}

bool all_there(const DataConfig& config) {
  const std::vector<std::string> places = places_of(config);
  return std::all_of(places.begin(), places.end(),
                     [](const std::string& place) { return place.empty() || exists(place); });
}

}  // namespace

DataRecord record_data(const DataConfig& config, const Task& task) {
  DataRecord record;
  if (const FileLists* files = config.options.find<FileLists>()) {
    record.lists = {files->train, files->validation, files->test};
  }
  const std::string path =
      config.path.empty() ? find_data_kind(config.kind).default_path : config.path;
  if (!path.empty()) {
    record.path = absolute(path);
  } else {
    for (auto& list : record.lists) {
      std::transform(list.begin(), list.end(), list.begin(), absolute);
    }
  }
  for (const Split split : kSplits) {
    record.fingerprints[static_cast<size_t>(split)] = task.fingerprint(split);
  }
  record.classes = task.class_names();
  return record;
}

JsonValue to_json(const DataRecord& record) {
  JsonValue lists = JsonValue::object(), fingerprints = JsonValue::object();
  for (const Split split : kSplits) {
    const auto i = static_cast<size_t>(split);
    JsonValue list = JsonValue::array();
    for (const std::string& pattern : record.lists[i]) list.push(pattern);
    lists.set(name_of(split), list);
    fingerprints.set(name_of(split), record.fingerprints[i]);
  }
  JsonValue classes = JsonValue::array();
  for (const std::string& name : record.classes) classes.push(name);
  return JsonValue::object()
      .set("path", record.path)
      .set("files", lists)
      .set("fingerprints", fingerprints)
      .set("classes", classes);
}

DataRecord data_record_from(const JsonValue& json) {
  DataRecord record;
  record.path = json.at("path").text();
  for (const Split split : kSplits) {
    const auto i = static_cast<size_t>(split);
    for (const JsonValue& pattern : json.at("files").at(name_of(split)).elements()) {
      record.lists[i].push_back(pattern.text());
    }
    record.fingerprints[i] = json.at("fingerprints").at(name_of(split)).text();
  }
  // Earlier versions did not record them.
  if (const JsonValue* classes = json.find("classes")) {
    for (const JsonValue& name : classes->elements()) record.classes.push_back(name.text());
  }
  return record;
}

DataConfig located(const DataConfig& config, const DataRecord& record) {
  DataConfig recorded = config;
  recorded.path = record.path;
  if (FileLists* files = recorded.options.find<FileLists>()) {
    files->train = record.lists[0];
    files->validation = record.lists[1];
    files->test = record.lists[2];
  }
  return all_there(recorded) || !all_there(config) ? recorded : config;
}

std::string changed_splits(const DataRecord& record, const Task& task,
                           const std::vector<Split>& splits) {
  std::vector<std::string> changed;
  for (const Split split : kSplits) {
    const bool used = std::count(splits.begin(), splits.end(), split) > 0;
    if (used && task.fingerprint(split) != record.fingerprints[static_cast<size_t>(split)]) {
      changed.emplace_back(name_of(split));
    }
  }
  if (changed.empty()) return "";
  std::string names = changed[0];
  for (size_t i = 1; i < changed.size(); ++i) {
    names += concat(i + 1 < changed.size() ? ", " : " and ", changed[i]);
  }
  return concat("the ", names, changed.size() == 1 ? " split" : " splits");
}

void require_same_classes(const DataRecord& record, const Task& task) {
  const std::vector<std::string> found = task.class_names();
  if (record.classes.empty() || found.empty() || found == record.classes) return;
  const auto list = [](const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += concat(text.empty() ? "" : ", ", name);
    return text;
  };
  throw UsageError(
      {ErrorCode::conflict, "data.classes"},
      concat("the classes of the data are ", list(found), ", those of the checkpoint ",
             list(record.classes), ": set data.classes='[", list(record.classes), "]'"));
}

std::string in_place(const DataConfig& config) {
  const std::vector<std::string> places = places_of(config);
  return places.empty() || places[0].empty() ? "" : concat(" in ", places[0]);
}

}  // namespace linnet
