// The nine tasks of GLUE (Wang et al. 2019) from their published files: kind glue.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/kind.h"
#include "data/labelled_text.h"

namespace linnet {

// A task as its files have it. Columns are found by name; CoLA's training and development files
// have no header, so theirs are numbers.
struct GlueTask {
  std::string_view name;    // as recipes write it: "sst2"
  std::string_view folder;  // as the published archive calls it: "SST-2"
  RowColumns columns;       // of the training and development files
  RowColumns test;
  std::vector<std::string> classes;     // in the order of the labels; empty: values (STS-B)
  std::array<int64_t, 3> rows;          // of the published files
  std::array<int64_t, 3> mismatched{};  // the same of MNLI's other section
  bool drops_rows = false;              // rows with missing fields are published, and left out
};

std::span<const GlueTask> glue_tasks();
// nullptr when there is none of that name, or for a folder that is not called as any is.
const GlueTask* find_glue_task(std::string_view name);
const GlueTask* glue_task_of_folder(const std::string& path);

struct GlueOptions : LabelledTextOptions, FileLists {
  std::string task = "auto";        // auto: the folder's name says it
  std::string section = "matched";  // of MNLI's development and test files
  static void describe(ConfigDescription<GlueOptions>& d);
  void validate(const ConfigNode& at) const { LabelledTextOptions::validate(at); }
};

DataKind glue_kind();

}  // namespace linnet
