// The published numbers of the papers' tables (recipes/published.tsv), and which of them a recipe
// measures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"

namespace linnet {

// The file recipes/published.tsv, compiled in.
extern const std::string_view kPublishedText;

// One number of a paper, or a cell that has none.
struct PublishedRow {
  std::string paper, table;  // "leapformer", "T1"; "text" for what stands in its prose
  std::string task, model;
  std::string setting;  // "seq_len=512;batch=256": what else tells it from other rows
  std::string metric;   // accuracy (%), ppl, params_m (10^6), mem_mb, itr_per_s, ...
  std::optional<double> value, std;
  std::string state;  // of a cell without a value: missing, out_of_memory, diverged
  std::string note;
  // What gives the same figure here: point (a point of a recipe), mean_of_tasks, mean_of_models,
  // rcp, rcp_mem (formulas over points), or "not compared: REASON".
  std::string from;
};

// All rows, in the order of the file.
const std::vector<PublishedRow>& published_rows();

// Whether a row's setting has every part of `wanted`, "seq_len=512;split=dev".
bool has_setting(const PublishedRow& row, const std::string& wanted);
// The value of a part of its setting: "512" of seq_len; "" where the row has no such part.
std::string setting_of(const PublishedRow& row, const std::string& key);

// Which evaluation gives the rows of a setting.
struct PublishedCell {
  std::string setting;
  int64_t context = 0;
  std::optional<int64_t> stride;
  bool carry_state = false;

  static void describe(ConfigDescription<PublishedCell>& d);
};

// The section `published` of a recipe.
struct PublishedConfig {
  std::string table;    // "leapformer T1"; "" in a recipe that others extend, and no rows then
  std::string task;     // "lra_listops"
  std::string model;    // of the rows; "" in a sweep, whose points take it from their label
  std::string setting;  // what the setting of its rows must have
  std::string split = "test";
  std::vector<PublishedCell> cells;

  static void describe(ConfigDescription<PublishedConfig>& d);
  bool has_rows() const { return !table.empty(); }
  // Throws UsageError where no row has this table, task, model and setting.
  void validate(const ConfigNode& at) const;
};

// The rows that a recipe with this section measures (from: point), in the order of the file.
std::vector<const PublishedRow*> rows_of(const PublishedConfig& published);

}  // namespace linnet
