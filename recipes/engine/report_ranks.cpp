#include "recipes/engine/report_ranks.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace linnet {
namespace {

// Parts of settings that tell columns apart; others (n=64, complexity=...) tell models apart.
constexpr std::array<const char*, 6> kColumnKeys{"backbone", "seq_len", "eval_context",
                                                 "progress", "split",   "phase"};
constexpr std::array<std::string_view, 8> kSmallestFirst{
    "ppl",        "mem_mb",      "mem_gb",     "s_per_step",
    "latency_ms", "mem_ratio_x", "ms_per_row", "mem_mb_per_row"};

std::string column_of(const ComparedCell& cell) {
  std::string column = concat(cell.task, ';', cell.metric);
  if (cell.row == nullptr) return concat(column, ';', cell.setting);
  for (const char* key : kColumnKeys) column += concat(';', setting_of(*cell.row, key));
  return column;
}

using Figure = std::optional<double> (*)(const ComparedCell&);

std::optional<double> printed(const ComparedCell& cell) {
  return cell.row == nullptr ? std::nullopt : cell.row->value;
}

std::optional<double> measured(const ComparedCell& cell) {
  return cell.mean;
}

// Its place among `cells`; 0 without a figure.
int place_of(const ComparedCell& cell, const std::vector<const ComparedCell*>& cells,
             Figure figure) {
  const std::optional<double> own = figure(cell);
  if (!own) return 0;
  const bool smallest =
      std::find(kSmallestFirst.begin(), kSmallestFirst.end(), cell.metric) != kSmallestFirst.end();
  return 1 + static_cast<int>(std::count_if(cells.begin(), cells.end(), [&](const auto* other) {
           return smallest ? *figure(*other) < *own : *figure(*other) > *own;
         }));
}

}  // namespace

void add_ranks(std::vector<ComparedCell>& cells) {
  for (ComparedCell& cell : cells) {
    if (cell.metric == "params_m" || cell.metric == "batch") continue;
    const std::string column = column_of(cell);
    std::vector<const ComparedCell*> in_paper, in_both;
    for (const ComparedCell& other : cells) {
      if (other.metric != cell.metric || column_of(other) != column) continue;
      if (printed(other)) in_paper.push_back(&other);
      if (other.mean && (printed(other) || other.row == nullptr)) in_both.push_back(&other);
    }
    Ranks& ranks = cell.ranks;
    ranks.paper = place_of(cell, in_paper, printed);
    ranks.paper_models = static_cast<int>(in_paper.size());
    ranks.measured_models = static_cast<int>(in_both.size());
    if (std::find(in_both.begin(), in_both.end(), &cell) == in_both.end()) continue;
    if (cell.row != nullptr) ranks.paper_among_measured = place_of(cell, in_both, printed);
    ranks.measured = place_of(cell, in_both, measured);
  }
}

}  // namespace linnet
