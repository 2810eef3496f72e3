#include "recipes/engine/report_table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/error.h"
#include "recipes/engine/report_chart.h"

namespace linnet {
namespace {

// Characters, not bytes, so that "–" counts as one column.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

}  // namespace

std::string format_value(double value, const char* format) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  char text[48];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

std::string format_bytes(int64_t bytes) {
  return bytes == 0 ? kNoValue
                    : format_value(static_cast<double>(bytes) / 1e6,
                                   bytes < 1'000'000'000 ? "%.3g MB" : "%.0f MB");
}

Table without_empty(Table table, const std::vector<std::string>& optional) {
  for (size_t column = table.head.size(); column-- > 0;) {
    const bool empty = std::all_of(table.rows.begin(), table.rows.end(),
                                   [&](const auto& row) { return row[column] == kNoValue; });
    if (!empty || std::count(optional.begin(), optional.end(), table.head[column]) == 0) continue;
    const auto offset = static_cast<int64_t>(column);
    table.head.erase(table.head.begin() + offset);
    for (auto& row : table.rows) row.erase(row.begin() + offset);
  }
  return table;
}

std::string table_to_html(const Table& table) {
  std::string html = "<div class=\"card\"><table><thead><tr>";
  for (const std::string& cell : table.head) html += concat("<th>", escape_html(cell), "</th>");
  html += "</tr></thead><tbody>";
  for (const auto& row : table.rows) {
    html += "<tr>";
    for (const std::string& cell : row) html += concat("<td>", escape_html(cell), "</td>");
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string table_to_text(const Table& table) {
  std::vector<size_t> widths(table.head.size());
  const auto measure = [&](const std::vector<std::string>& row) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  };
  measure(table.head);
  for (const auto& row : table.rows) measure(row);
  std::string text;
  const auto add = [&](const std::vector<std::string>& row) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string blanks(widths[i] - width_of(row[i]), ' ');
      text += i == 0 ? concat(row[i], blanks) : concat("  ", blanks, row[i]);
    }
    text += '\n';
  };
  add(table.head);
  for (const auto& row : table.rows) add(row);
  return text;
}

}  // namespace linnet
