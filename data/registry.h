// The registry of kinds of data: an explicit list; everything else (recipes, `linnet data`, the
// tasks of the engine) loops over it or asks it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/kind.h"

namespace linnet {

// All kinds, in the order of the list in registry.cpp.
const std::vector<DataKind>& data_kinds();
// Throws UsageError with the nearest names when there is none.
const DataKind& find_data_kind(std::string_view name);
// Adds a kind from outside, before anything holds on to another one. Throws UsageError when the
// name is taken or the entry is incomplete.
void register_data_kind(DataKind kind);

// What the data of a configuration are.
DataForm form_of(const DataConfig& config);

// The kind of the data at a path (Likeness). Throws Error when the path does not exist.
std::string detect_data_kind(const std::string& path);

// Whether `key` of the section `data` says, in any kind, which data are read.
bool says_which_data(std::string_view key);

// "; self: left out for the current folder; listops: ...": what stands for a path that is left out.
std::string paths_left_out();

}  // namespace linnet
