// Which data a run was trained on: where they lay, and what they held.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "core/json.h"
#include "recipes/engine/task.h"

namespace linnet {

// Part of a checkpoint's metadata.
struct DataRecord {
  // data.path, data.train, ... as absolute paths.
  std::string path;
  std::array<std::vector<std::string>, 3> lists;
  std::array<std::string, 3> fingerprints;  // Task::fingerprint() of each split
  std::vector<std::string> classes;         // Task::class_names()
};

// `config`: of the task. Reads every file of the data set.
DataRecord record_data(const DataConfig& config, const Task& task);

JsonValue to_json(const DataRecord& record);
DataRecord data_record_from(const JsonValue& json);

// `config` with the recorded places instead of its own, which may be relative to another folder
// than the current one. Data that are gone from there, but not from where `config` says, are taken
// from the latter.
DataConfig located(const DataConfig& config, const DataRecord& record);

// Those of `splits` whose contents are not the recorded ones: "", "the validation split" or "the
// train and test splits".
std::string changed_splits(const DataRecord& record, const Task& task,
                           const std::vector<Split>& splits);

// Throws UsageError when the classes of the data are not the recorded ones, in their order.
void require_same_classes(const DataRecord& record, const Task& task);

// " in PLACE" for messages; "" for data that are generated.
std::string in_place(const DataConfig& config);

}  // namespace linnet
