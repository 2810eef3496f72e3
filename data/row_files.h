// Labelled texts in tables and JSON lines: kinds tsv, csv and jsonl.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "data/kind.h"
#include "data/labelled_text.h"

namespace linnet {

// Keys of kind jsonl.
struct RowFileOptions : LabelledTextOptions, FileLists {
  std::string text = "text", text_pair{}, label = "label";
  static void describe(ConfigDescription<RowFileOptions>& d);
  void validate(const ConfigNode& at) const { LabelledTextOptions::validate(at); }
};

// Keys of kinds tsv and csv.
struct TableOptions : RowFileOptions {
  bool header = true;
  static void describe(ConfigDescription<TableOptions>& d);
  void validate(const ConfigNode& at) const { LabelledTextOptions::validate(at); }
};

DataKind tsv_kind();
DataKind csv_kind();
DataKind jsonl_kind();

// The files that the lists of a configuration name for each split, relative to its path. Throws
// UsageError for a file in two of them.
std::array<std::vector<std::string>, 3> listed_files(const DataConfig& config);

// The file of a split in a folder: train.tsv; validation.tsv, valid.tsv, val.tsv or dev.tsv;
// test.tsv. "" where there is none.
std::string split_file(const std::string& folder, Split split, const std::string& extension);

}  // namespace linnet
