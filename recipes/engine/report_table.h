// Tables of a report, as HTML and as text for terminals.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace linnet {

struct Table {
  std::vector<std::string> head;
  std::vector<std::vector<std::string>> rows;  // each as long as the head
};

// What stands for a value that there is not.
inline constexpr const char* kNoValue = "–";

// By printf's `format`; "nan", "inf" and "-inf" for the values that are called so.
std::string format_value(double value, const char* format = "%.4g");
// "812 MB"; kNoValue for 0.
std::string format_bytes(int64_t bytes);

// Without those columns of `optional` in which no row has a value.
Table without_empty(Table table, const std::vector<std::string>& optional);

// An HTML table inside of a card; all texts are escaped.
std::string table_to_html(const Table& table);
// In columns, the first of them to the left.
std::string table_to_text(const Table& table);

}  // namespace linnet
