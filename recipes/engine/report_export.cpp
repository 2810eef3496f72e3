// Compared tables for programs, and for papers.
#include "recipes/engine/report_export.h"

#include "recipes/engine/report.h"

namespace linnet {
namespace {

JsonValue or_null(const std::optional<double>& value) {
  return value ? JsonValue(*value) : JsonValue();
}

JsonValue to_json(const ComparedCell& cell) {
  JsonValue seeds = JsonValue::object();
  for (const auto& [seed, value] : cell.by_seed) seeds.set(std::to_string(seed), value);
  JsonValue without = JsonValue::object();
  for (const auto& [state, count] : cell.without) without.set(state, count);
  JsonValue json = JsonValue::object()
                       .set("task", cell.task)
                       .set("model", cell.model)
                       .set("setting", cell.setting)
                       .set("metric", cell.metric);
  if (cell.row != nullptr) {
    json.set("from", cell.row->from)
        .set("paper", or_null(cell.row->value))
        .set("paper_deviation", or_null(cell.row->std))
        .set("paper_state", cell.row->state)
        .set("paper_note", cell.row->note);
  }
  return json.set("measured", or_null(cell.mean))
      .set("deviation", or_null(cell.deviation))
      .set("n", cell.count)
      .set("state", cell.state())
      .set("by_seed", std::move(seeds))
      .set("runs_without", std::move(without))
      .set("difference", or_null(cell.difference()))
      .set("paper_rank", cell.ranks.paper)
      .set("paper_models", cell.ranks.paper_models)
      .set("rank", cell.ranks.measured)
      .set("measured_models", cell.ranks.measured_models)
      .set("paper_rank_among_measured", cell.ranks.paper_among_measured);
}

JsonValue to_json(const RunData& run) {
  JsonValue json = JsonValue::object()
                       .set("name", run.name)
                       .set("path", run.path)
                       .set("end", name_of(run.end))
                       .set("seed", run.seed);
  if (run.published) {
    json.set("table", run.published->table)
        .set("task", run.published->task)
        .set("model", run.published->model);
  }
  return json.set("steps", run.loss.empty() ? 0 : run.loss.back().step)
      .set("tokens", run.tokens)
      .set("parameters", run.parameters)
      .set("wall_seconds", run.wall_seconds)
      .set("peak_resident_bytes", run.peak_resident_bytes)
      .set("peak_tensor_bytes", run.peak_tensor_bytes);
}

// RFC 4180.
std::string csv_line(const std::vector<std::string>& values) {
  std::string line;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) line += ',';
    if (values[i].find_first_of(",\"\r\n") == std::string::npos) {
      line += values[i];
      continue;
    }
    line += '"';
    for (const char c : values[i]) line += c == '"' ? std::string("\"\"") : std::string(1, c);
    line += '"';
  }
  return line + "\n";
}

std::string csv_number(const std::optional<double>& value) {
  return value ? format_value(*value, "%.10g") : "";
}

std::string csv_place(int place) {
  return place == 0 ? "" : std::to_string(place);
}

std::string escape_latex(const std::string& text) {
  std::string latex;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = std::string_view(text).substr(i);
    const auto replace = [&](std::string_view what, const char* by) {
      if (!rest.starts_with(what)) return false;
      latex += by;
      i += what.size() - 1;
      return true;
    };
    if (replace("±", "$\\pm$") || replace("–", "--") || replace("\\", "\\textbackslash{}") ||
        replace("~", "\\textasciitilde{}") || replace("^", "\\textasciicircum{}"))
      continue;
    if (std::string_view("&%$#_{}").find(text[i]) != std::string_view::npos) latex += '\\';
    latex += text[i];
  }
  return latex;
}

std::string table_to_latex(const std::string& title, const Table& table,
                           const std::string& note = "") {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string text;
    for (const std::string& cell : cells)
      text += concat(text.empty() ? "" : " & ", escape_latex(cell));
    return text + " \\\\\n";
  };
  std::string latex =
      concat("% ", title, note.empty() ? "" : "\n% ", note, "\n\\begin{tabular}{",
             std::string(table.head.size(), 'l'), "}\n\\hline\n", line(table.head), "\\hline\n");
  for (const auto& row : table.rows) latex += line(row);
  return latex + "\\hline\n\\end{tabular}\n";
}

}  // namespace

JsonValue report_json(const std::vector<RunData>& runs, const std::vector<ComparedTable>& tables) {
  JsonValue all = JsonValue::array();
  for (const ComparedTable& table : tables) {
    JsonValue cells = JsonValue::array();
    for (const ComparedCell& cell : table.cells) cells.push(to_json(cell));
    all.push(JsonValue::object()
                 .set("name", table.name)
                 .set("published", table.published)
                 .set("note", table.note)
                 .set("cells", std::move(cells)));
  }
  JsonValue list = JsonValue::array();
  for (const RunData& run : runs) list.push(to_json(run));
  return JsonValue::object().set("tables", std::move(all)).set("runs", std::move(list));
}

std::string report_csv(const std::vector<RunData>& runs, const std::vector<ComparedTable>& tables) {
  std::string csv =
      csv_line({"table", "task", "model", "setting", "metric", "paper", "paper_deviation",
                "paper_state", "measured", "deviation", "n", "state", "difference", "paper_rank",
                "rank", "paper_rank_among_measured"});
  for (const ComparedTable& table : tables) {
    for (const ComparedCell& cell : table.cells) {
      const bool printed = cell.row != nullptr;
      csv +=
          csv_line({table.name, cell.task, cell.model, cell.setting, cell.metric,
                    printed ? csv_number(cell.row->value) : "",
                    printed ? csv_number(cell.row->std) : "", printed ? cell.row->state : "",
                    csv_number(cell.mean), csv_number(cell.deviation), std::to_string(cell.count),
                    cell.state(), csv_number(cell.difference()), csv_place(cell.ranks.paper),
                    csv_place(cell.ranks.measured), csv_place(cell.ranks.paper_among_measured)});
    }
  }
  for (const RunData& run : runs) {
    const auto fact = [&](const char* metric, double value) {
      if (value == 0) return;
      csv += csv_line({"runs", "", run.name, "", metric, "", "", "", csv_number(value), "", "1",
                       name_of(run.end), "", "", "", ""});
    };
    fact("parameters", static_cast<double>(run.parameters));
    fact("wall_seconds", run.wall_seconds);
    fact("peak_resident_bytes", static_cast<double>(run.peak_resident_bytes));
    fact("peak_tensor_bytes", static_cast<double>(run.peak_tensor_bytes));
  }
  return csv;
}

std::string report_latex(const std::vector<RunData>& runs,
                         const std::vector<ComparedTable>& tables) {
  std::string latex;
  for (const ComparedTable& table : tables)
    latex += table_to_latex(table.name, readable(table), table.note) + "\n";
  return runs.empty() ? latex : latex + table_to_latex("runs", training_table(runs));
}

}  // namespace linnet
