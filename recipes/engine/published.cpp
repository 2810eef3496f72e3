#include "recipes/engine/published.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "core/suggest.h"

namespace linnet {
namespace {

std::vector<std::string> parts_of(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::optional<double> number_of(const std::string& text) {
  if (text.empty()) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc() && end == text.data() + text.size(), "published.tsv: '", text,
          "' is no number");
  return value;
}

std::vector<PublishedRow> read_rows() {
  constexpr size_t kColumns = 11;
  std::vector<PublishedRow> rows;
  const std::vector<std::string> lines = parts_of(kPublishedText, '\n');
  for (size_t i = 1; i < lines.size(); ++i) {  // after the head
    if (lines[i].empty()) continue;
    const std::vector<std::string> cells = parts_of(lines[i], '\t');
    require(cells.size() == kColumns, "published.tsv:", i + 1, ": ", cells.size(), " columns");
    rows.push_back({cells[0], cells[1], cells[2], cells[3], cells[4], cells[5], number_of(cells[6]),
                    number_of(cells[7]), cells[8], cells[9], cells[10]});
  }
  return rows;
}

bool is_of_point(const PublishedRow& row) {
  return row.from == "point";
}

std::string table_of(const PublishedRow& row) {
  return concat(row.paper, " ", row.table);
}

// The rows of `rows` with what `of` makes of them equal to `wanted`; refuses when there is none.
template <typename F>
std::vector<const PublishedRow*> narrowed(const std::vector<const PublishedRow*>& rows, const F& of,
                                          const std::string& wanted, const std::string& key,
                                          const std::string& where, const ConfigNode& at) {
  std::vector<const PublishedRow*> found;
  std::set<std::string> others;
  for (const PublishedRow* row : rows) {
    others.insert(of(*row));
    if (of(*row) == wanted) found.push_back(row);
  }
  if (!found.empty()) return found;
  throw located_error(
      at.location_of(key), Cause{ErrorCode::unknown_name, concat("published.", key)}, "'published.",
      key, "': ", where, " '", wanted, "'; ", suggestion(wanted, {others.begin(), others.end()}));
}

}  // namespace

const std::vector<PublishedRow>& published_rows() {
  static const std::vector<PublishedRow> rows = read_rows();
  return rows;
}

bool has_setting(const PublishedRow& row, const std::string& wanted) {
  if (wanted.empty()) return true;
  const std::vector<std::string> parts = parts_of(row.setting, ';');
  const std::vector<std::string> needed = parts_of(wanted, ';');
  return std::all_of(needed.begin(), needed.end(), [&](const std::string& part) {
    return std::count(parts.begin(), parts.end(), part) > 0;
  });
}

std::string setting_of(const PublishedRow& row, const std::string& key) {
  for (const std::string& part : parts_of(row.setting, ';')) {
    if (part.starts_with(key + "=")) return part.substr(key.size() + 1);
  }
  return "";
}

void PublishedCell::describe(ConfigDescription<PublishedCell>& d) {
  d.field("setting", &PublishedCell::setting, "part of the rows' setting, such as eval_context=480")
      .required();
  d.field("context", &PublishedCell::context, "length of the windows that give them")
      .at_least(1)
      .unit("tokens")
      .required();
  d.optional("stride", &PublishedCell::stride, "step of overlapping windows; none: they do not")
      .at_least(1)
      .unit("tokens");
  d.field("carry_state", &PublishedCell::carry_state, "whole documents with carried state");
}

void PublishedConfig::describe(ConfigDescription<PublishedConfig>& d) {
  d.field("table", &PublishedConfig::table,
          "paper and table, such as leapformer T1; absent in a recipe for others to extend");
  d.field("task", &PublishedConfig::task, "task of its rows, such as lra_listops");
  d.field("model", &PublishedConfig::model,
          "model of its rows; absent in a sweep with one labelled axis, whose labels they are");
  d.field("setting", &PublishedConfig::setting,
          "what the setting of its rows must have, such as seq_len=512;batch=256");
  d.choice("split", &PublishedConfig::split, {"validation", "test"},
           "the split of rows that name none");
  d.list("cells", &PublishedConfig::cells,
         "which evaluation gives the rows of a setting, where it is not windows of the row's "
         "eval_context, or of the training context");
}

void PublishedConfig::validate(const ConfigNode& at) const {
  if (table.empty() && task.empty()) return;
  std::vector<const PublishedRow*> rows;
  for (const PublishedRow& row : published_rows()) {
    if (is_of_point(row)) rows.push_back(&row);
  }
  rows = narrowed(rows, table_of, table, "table", "no published table is called", at);
  rows = narrowed(
      rows, [](const auto& row) { return row.task; }, task, "task", table + " has no task", at);
  if (!model.empty()) {
    rows = narrowed(
        rows, [](const auto& row) { return row.model; }, model, "model",
        concat(table, ", ", task, ", has no row of a model called"), at);
  }
  const auto fits = [&](const PublishedRow* row) { return has_setting(*row, setting); };
  if (std::none_of(rows.begin(), rows.end(), fits)) {
    throw located_error(at.location_of("setting"),
                        Cause{ErrorCode::unknown_name, "published.setting"},
                        "'published.setting': no row of these has '", setting, "'; the first has '",
                        rows.front()->setting, "'");
  }
}

std::vector<const PublishedRow*> rows_of(const PublishedConfig& published) {
  std::vector<const PublishedRow*> found;
  for (const PublishedRow& row : published_rows()) {
    if (is_of_point(row) && table_of(row) == published.table && row.task == published.task &&
        row.model == published.model && has_setting(row, published.setting)) {
      found.push_back(&row);
    }
  }
  return found;
}

}  // namespace linnet
