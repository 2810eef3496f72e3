#include "recipes/engine/report_speeds.h"

#include "core/echo.h"
#include "recipes/engine/report_ranks.h"

namespace linnet {
namespace {

std::string table_of(const PublishedRow& row) {
  return concat(row.paper, ' ', row.table);
}

// The figure of a line on the row's device, or why there is none.
void add_speed(ComparedCell& cell, const ModelBenchLine& line, const BenchGroup& group) {
  if (!line.bench.fits()) {
    ++cell.without[name_of(RunEnd::out_of_memory)];
    return;
  }
  const BenchFigures figures = figures_of(line, group);
  const std::string& metric = cell.row->metric;
  if (metric == "itr_per_s") cell.mean = figures.rate;
  if (metric == "speedup_x") cell.mean = figures.speedup;
  if (metric == "mem_ratio_x") cell.mean = figures.memory_ratio;
  if (cell.mean) {
    cell.count = 1;
  } else if (metric == "speedup_x" || metric == "mem_ratio_x") {
    ++cell.without["no softmax attention to compare with"];
  } else {  // of the survey's figure, which says where memory ends alone
    ++cell.without[concat("fits: ", format_value(figures.row_ms), " ms and ",
                          format_value(figures.row_mb), " MB per row")];
  }
}

}  // namespace

Tasks tasks_of(const std::vector<BenchGroup>& groups) {
  Tasks tasks;
  for (const BenchGroup& group : groups) {
    for (const ModelBenchLine* line : group.lines) {
      if (line->bench.published)
        tasks.emplace(line->bench.published->table, line->bench.published->task);
    }
  }
  return tasks;
}

Speeds add_speeds(const std::vector<BenchGroup>& groups, Cells& cells) {
  Speeds speeds;
  std::map<std::string, Speed> by_table;
  const auto keep = [&](const PublishedRow& row, const Speed& speed) {
    const Speed& first = by_table.try_emplace(table_of(row), speed).first->second;
    require_usage(first.group == speed.group, Cause{ErrorCode::conflict, "", speed.line->place},
                  shell_word(first.line->place), " and ", shell_word(speed.line->place),
                  " both measure ", table_of(row), " in the paper's sizes, in different ways (",
                  first.group->title, "; ", speed.group->title, "); report them apart");
    speeds.emplace(&row, speed);
  };
  for (const BenchGroup& group : groups) {
    for (const ModelBenchLine* line : group.lines) {
      if (!line->bench.published) continue;
      for (const PublishedRow* row : rows_of(*line->bench.published)) {
        if (setting_of(*row, "seq_len") != std::to_string(line->bench.length)) continue;
        const std::string departure = departure_of(*line, *row);
        if (departure.empty())
          add_speed(cells.at(row), *line, group);
        else
          ++cells.at(row).without[departure];
        if (has_published_sizes(*line) && line->bench.fits()) keep(*row, {line, &group});
      }
    }
  }
  return speeds;
}

std::vector<ComparedTable> speed_tables(const std::vector<BenchGroup>& groups) {
  std::vector<ComparedTable> tables;
  for (const BenchGroup& group : groups) {
    ComparedTable& table = tables.emplace_back();
    table.name = group.title;
    table.note = bench_note(group);
    table.compact = bench_table(group);
    for (const ModelBenchLine* line : group.lines) {
      const bool fits = line->bench.fits();
      const BenchFigures figures = fits ? figures_of(*line, group) : BenchFigures();
      const auto add = [&](const char* metric, const std::optional<double>& value) {
        if (fits && !value) return;
        ComparedCell& cell = table.cells.emplace_back();
        cell.model = model_of(line->bench);
        cell.setting = concat("seq_len=", line->bench.length);
        cell.metric = metric;
        if (!fits) {
          ++cell.without[name_of(RunEnd::out_of_memory)];
          return;
        }
        cell.mean = value;
        cell.count = 1;
      };
      add("itr_per_s", figures.rate);
      add("batch", static_cast<double>(line->bench.batch));
      add("ms_per_row", figures.row_ms);
      add("mem_mb", figures.memory_mb);
      add("mem_mb_per_row", figures.row_mb);
      add("speedup_x", figures.speedup);
      add("mem_ratio_x", figures.memory_ratio);
    }
    add_ranks(table.cells);
  }
  return tables;
}

}  // namespace linnet
