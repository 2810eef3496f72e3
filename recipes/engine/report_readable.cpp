// Compared tables for people.
#include <algorithm>
#include <array>
#include <map>

#include "core/echo.h"
#include "recipes/engine/report_chart.h"
#include "recipes/engine/report_export.h"

namespace linnet {
namespace {

// Parts of settings that say nothing about what is measured here.
constexpr std::array<std::string_view, 5> kLeftOut{"hardware", "complexity", "seeds", "framework",
                                                   "params"};

// "seq_len=512", "batch=256", ... of a row.
std::vector<std::string> parts_of(const std::string& setting) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < setting.size();) {
    const size_t end = std::min(setting.find(';', begin), setting.size());
    parts.push_back(setting.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Those parts of the cell's setting that not all of `cells` have.
std::string telling_setting(const ComparedCell& cell, const std::vector<ComparedCell>& cells) {
  if (cell.row == nullptr) return cell.setting;
  std::string text;
  for (const std::string& part : parts_of(cell.setting)) {
    const std::string key = part.substr(0, part.find('='));
    const bool common = std::all_of(cells.begin(), cells.end(), [&](const ComparedCell& other) {
      return other.task != cell.task || other.metric != cell.metric ||
             has_setting(*other.row, part);
    });
    if (common || std::find(kLeftOut.begin(), kLeftOut.end(), key) != kLeftOut.end()) continue;
    text += concat(text.empty() ? "" : ", ", part);
  }
  return text;
}

const char* format_of(const std::string& metric) {
  const bool two_digits = metric == "accuracy" || metric == "ppl" || metric == "params_m" ||
                          metric == "rcp" || metric == "rcp_mem";
  return two_digits ? "%.2f" : "%.4g";
}

std::string with_deviation(double value, const std::optional<double>& deviation,
                           const char* format) {
  return concat(format_value(value, format),
                deviation ? concat(" ± ", format_value(*deviation, format)) : "");
}

std::string printed_text(const ComparedCell& cell, const char* format) {
  if (cell.row == nullptr) return kNoValue;
  if (cell.row->value) return with_deviation(*cell.row->value, cell.row->std, format);
  std::string state = cell.row->state;
  std::replace(state.begin(), state.end(), '_', ' ');
  return state;
}

std::string measured_text(const ComparedCell& cell, const char* format) {
  if (!cell.mean) return cell.state();
  std::string text = with_deviation(*cell.mean, cell.deviation, format);
  std::string others;
  for (const auto& [state, count] : cell.without)
    others += concat(others.empty() ? "" : ", ", count, ' ', state);
  return others.empty() ? text : concat(text, " (", others, ")");
}

std::string difference_text(const ComparedCell& cell, const char* format) {
  const std::optional<double> difference = cell.difference();
  if (!difference) return kNoValue;
  return concat(*difference > 0 ? "+" : "", format_value(*difference, format));
}

std::string place_text(int place, int models) {
  return place == 0 || models < 2 ? kNoValue : concat(place, " of ", models);
}

std::string metric_text(const ComparedCell& cell) {
  static const std::map<std::string, std::string> names = {
      {"accuracy", "accuracy, %"},     {"ppl", "perplexity"},    {"params_m", "parameters, M"},
      {"mem_mb", "memory, MB"},        {"itr_per_s", "steps/s"}, {"speedup_x", "speedup"},
      {"mem_ratio_x", "memory ratio"}, {"rcp", "RCP"},           {"rcp_mem", "RCP with memory"}};
  const auto found = names.find(cell.metric);
  return found == names.end() ? cell.metric : found->second;
}

bool is_shown(const ComparedTable& table) {
  return table.published || !table.compact.rows.empty() ||
         std::any_of(table.cells.begin(), table.cells.end(), [](const ComparedCell& cell) {
           return cell.count > 1 || cell.metric == "rcp";
         });
}

std::string title_of(const ComparedTable& table) {
  if (table.published) return concat(table.name, ": the paper's figures and these runs'");
  if (!table.compact.rows.empty()) return table.name;
  const bool seeds = std::any_of(table.cells.begin(), table.cells.end(),
                                 [](const ComparedCell& cell) { return cell.count > 1; });
  return concat(table.name, seeds ? ": means over seeds" : ": these runs");
}

}  // namespace

Table readable(const ComparedTable& table) {
  if (!table.compact.rows.empty()) return table.compact;
  Table shown{{"task", "model", "setting", "figure", "paper", "measured", "n", "difference",
               "paper's rank", "rank", "paper's among these"},
              {}};
  for (const ComparedCell& cell : table.cells) {
    const char* format = format_of(cell.metric);
    const Ranks& ranks = cell.ranks;
    const std::string setting = telling_setting(cell, table.cells);
    shown.rows.push_back(
        {cell.task.empty() ? kNoValue : cell.task, cell.model, setting.empty() ? kNoValue : setting,
         metric_text(cell), printed_text(cell, format), measured_text(cell, format),
         cell.count == 0 ? kNoValue : std::to_string(cell.count), difference_text(cell, format),
         place_text(ranks.paper, ranks.paper_models),
         place_text(ranks.measured, ranks.measured_models),
         place_text(ranks.paper_among_measured, ranks.measured_models)});
  }
  return without_empty(std::move(shown), {"task", "setting", "paper", "n", "difference",
                                          "paper's rank", "rank", "paper's among these"});
}

std::string comparison_text(const std::vector<ComparedTable>& tables) {
  std::string text;
  for (const ComparedTable& table : tables) {
    if (!is_shown(table)) continue;
    text += concat(text.empty() ? "" : "\n", title_of(table), "\n", table_to_text(readable(table)),
                   table.note.empty() ? "" : table.note + "\n");
  }
  return printable(text);
}

std::string comparison_html(const std::vector<ComparedTable>& tables) {
  std::string html;
  for (const ComparedTable& table : tables) {
    if (!is_shown(table)) continue;
    html += concat("<h2>", escape_html(title_of(table)), "</h2>\n", table_to_html(readable(table)));
    if (!table.note.empty())
      html += concat("<p class=\"note\">", escape_html(table.note), "</p>\n");
  }
  return html;
}

}  // namespace linnet
