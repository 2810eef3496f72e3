#include "recipes/engine/report_published.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/config.h"
#include "recipes/engine/published_sizes.h"
#include "recipes/engine/report_claims.h"
#include "recipes/engine/report_composite.h"
#include "recipes/engine/report_figure.h"
#include "recipes/engine/report_formulas.h"
#include "recipes/engine/report_ranks.h"
#include "recipes/engine/report_speeds.h"

namespace linnet {
namespace {

constexpr const char* kOwnMemory =
    "RCP with memory is of these runs' own memory: the paper of RCP prints none that it could be "
    "checked "
    "with.";

std::string table_of(const PublishedRow& row) {
  return concat(row.paper, ' ', row.table);
}

void add_figure(ComparedCell& cell, const RunData& run, const RunFigure& figure) {
  if (figure.value)
    cell.by_seed[run.seed] = *figure.value;
  else
    ++cell.without[figure.state];
}

void summarise(ComparedCell& cell) {
  std::vector<double> values;
  for (const auto& [seed, value] : cell.by_seed) values.push_back(value);
  cell.mean = mean_of(values);
  cell.deviation = sample_deviation(values);
  cell.count = static_cast<int>(values.size());
}

// The cells of the rows that runs claim, and of the other rows of their tasks and of `tasks`.
Cells claimed_cells(const std::vector<RunData>& runs, Tasks tasks) {
  for (const RunData& run : runs) {
    if (run.published) tasks.emplace(run.published->table, run.published->task);
  }
  Cells cells;
  for (const PublishedRow& row : published_rows()) {
    if (row.from == "point" && tasks.count({table_of(row), row.task}) > 0) cells[&row].row = &row;
  }
  for (const RunData& run : runs) {
    if (!run.published) continue;
    for (const PublishedRow* row : rows_of(*run.published)) {
      const RunFigure figure = figure_of(run, *row);
      add_figure(cells[row], run, figure);
      const auto examples = published_examples(row->task, split_of(run, *row));
      if (!figure.value || !examples || figure.examples == 0 || figure.examples == *examples)
        continue;
      cells[row].examples = figure.examples;
      cells[row].paper_examples = *examples;
    }
  }
  for (auto& [row, cell] : cells) summarise(cell);
  return cells;
}

// The seeds that all of these rows have.
std::set<int64_t> common_seeds(const std::vector<const PublishedRow*>& inputs, const Cells& cells) {
  std::set<int64_t> seeds;
  for (const auto& figure : cells.at(inputs.front()).by_seed) {
    const bool common = std::all_of(inputs.begin(), inputs.end(), [&](const auto* input) {
      return cells.at(input).by_seed.count(figure.first) > 0;
    });
    if (common) seeds.insert(figure.first);
  }
  return seeds;
}

// By seed where all inputs but speeds have the same seeds; else of their means, without a
// deviation.
void add_formula(const PublishedRow& row, const Speeds& speeds, Cells& cells) {
  const std::vector<const PublishedRow*> inputs = formula_inputs(row);
  const auto is_there = [&](const auto* input) { return cells.count(input) > 0; };
  if (inputs.empty() || std::none_of(inputs.begin(), inputs.end(), is_there)) return;
  ComparedCell cell;
  cell.row = &row;
  if (!std::all_of(inputs.begin(), inputs.end(), is_there)) {
    cells[&row] = cell;
    return;
  }
  std::vector<const PublishedRow*> scores;
  std::copy_if(inputs.begin(), inputs.end(), std::back_inserter(scores),
               [&](const auto* input) { return speeds.count(input) == 0; });
  const auto formula = [&](const FigureOfRow& score) {
    const auto figure = [&](const PublishedRow& input) -> std::optional<double> {
      const auto speed = speeds.find(&input);
      return speed == speeds.end() ? score(input) : speed->second.line->bench.rate();
    };
    const auto memory = [&](const PublishedRow& input) -> std::optional<double> {
      const auto speed = speeds.find(&input);
      if (speed == speeds.end()) return std::nullopt;
      return static_cast<double>(speed->second.line->bench.peak_bytes);
    };
    return formula_figure(row, figure, memory);
  };
  for (const int64_t seed : common_seeds(scores, cells)) {
    const auto score = [&](const PublishedRow& input) -> std::optional<double> {
      return cells.at(&input).by_seed.at(seed);
    };
    if (const auto value = formula(score)) cell.by_seed[seed] = *value;
  }
  const bool same_seeds = std::all_of(scores.begin(), scores.end(), [&](const auto* input) {
    return cells.at(input).by_seed.size() == cell.by_seed.size();
  });
  if (same_seeds) {
    summarise(cell);
  } else {
    cell.by_seed.clear();
    cell.mean = formula([&](const PublishedRow& input) { return cells.at(&input).mean; });
    for (const PublishedRow* input : scores) {
      const int count = cells.at(input).count;
      cell.count = cell.count == 0 ? count : std::min(cell.count, count);
    }
  }
  cells[&row] = cell;
}

// Averages first: means over models and RCP are made of them.
void add_formulas(const Speeds& speeds, Cells& cells) {
  for (const bool averages : {true, false}) {
    for (const PublishedRow& row : published_rows()) {
      if ((row.from == "mean_of_tasks") == averages) add_formula(row, speeds, cells);
    }
  }
}

void name_cell(ComparedCell& cell) {
  cell.task = cell.row->task;
  cell.model = cell.row->model;
  cell.setting = cell.row->setting;
  cell.metric = cell.row->metric;
}

// A tiny data set in the layout of the paper's is no other protocol by its recipe.
std::string note_on_examples(const ComparedTable& table) {
  std::map<std::string, std::string> models;  // by what they scored
  for (const ComparedCell& cell : table.cells) {
    if (cell.examples == 0) continue;
    std::string& names = models[concat(cell.task, ", ", cell.examples, " examples instead of ",
                                       cell.paper_examples)];
    names += concat(names.empty() ? "" : ", ", cell.model);
  }
  std::string note;
  for (const auto& [scored, names] : models)
    note += concat(note.empty() ? "" : "; ", scored, " (", names, ")");
  return note.empty() ? "" : concat("Scored on other data than the paper's: ", note, ".");
}

// What the reader of a table has to know: of RCP, and of what was scored.
std::string note_on(const ComparedTable& table, const Speeds& speeds) {
  const auto has = [&](const char* metric) {
    return std::any_of(table.cells.begin(), table.cells.end(), [&](const ComparedCell& cell) {
      return cell.metric == metric && cell.mean.has_value();
    });
  };
  std::string note;
  if (has("rcp") && !speeds.empty())
    note = concat("Speeds of RCP: ", speeds.begin()->second.group->title, ".");
  if (has("rcp_mem")) note += concat(note.empty() ? "" : " ", kOwnMemory);
  const std::string examples = note_on_examples(table);
  return concat(note, note.empty() || examples.empty() ? "" : " ", examples);
}

std::vector<ComparedTable> published_tables(const std::vector<RunData>& runs,
                                            const std::vector<BenchGroup>& groups) {
  std::vector<ComparedTable> tables;
  Cells cells = claimed_cells(runs, tasks_of(groups));
  if (cells.empty()) return tables;
  const Speeds speeds = add_speeds(groups, cells);
  add_formulas(speeds, cells);
  for (const PublishedRow& row : published_rows()) {
    const auto found = cells.find(&row);
    if (found == cells.end()) continue;
    name_cell(found->second);
    const std::string name = table_of(row);
    auto table = std::find_if(tables.begin(), tables.end(),
                              [&](const ComparedTable& each) { return each.name == name; });
    if (table == tables.end()) {
      tables.push_back({name, true, {}, "", {}});
      table = tables.end() - 1;
    }
    table->cells.push_back(found->second);
  }
  for (ComparedTable& table : tables) {
    add_ranks(table.cells);
    table.note = note_on(table, speeds);
  }
  return tables;
}

// "LAVO" of a point's folder "LAVO,seed=1".
std::string without_seed(const std::string& name) {
  std::string kept;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find(',', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (!part.starts_with("seed=")) kept += concat(kept.empty() ? "" : ",", part);
    begin = end + 1;
  }
  return kept.empty() ? name : kept;
}

// The figures of each evaluation of a run that the table has no row for.
void add_own_figures(std::vector<ComparedCell>& cells, const std::string& model,
                     const RunData& run) {
  for (const EvaluationCurves& curves : run.evaluations) {
    const auto replaces = [&](const EvaluationCurves& other) {
      return other.later && other.split == curves.split && other.scored.reads_as(curves.scored);
    };
    if (!curves.later && std::any_of(run.evaluations.begin(), run.evaluations.end(), replaces))
      continue;
    const std::string scored = curves.scored.text();
    const std::string setting = concat(curves.split, scored.empty() ? "" : ", ", scored);
    const auto add = [&](const char* metric, const MetricCurve& curve, double unit) {
      const std::optional<double> value = figure_at(run, curves, curve);
      if (!value) return;
      auto cell = std::find_if(cells.begin(), cells.end(), [&](const ComparedCell& each) {
        return each.model == model && each.setting == setting && each.metric == metric;
      });
      if (cell == cells.end()) {
        cells.push_back({});
        cell = cells.end() - 1;
        cell->model = model;
        cell->setting = setting;
        cell->metric = metric;
      }
      RunFigure figure{unit * *value, ""};
      if (run.end != RunEnd::finished) figure = {std::nullopt, name_of(run.end)};
      if (figure.value && !std::isfinite(*value))
        figure = {std::nullopt, name_of(RunEnd::diverged)};
      add_figure(*cell, run, figure);
    };
    add("accuracy", curves.accuracy, 100);
    add("ppl", curves.perplexity, 1);
  }
}

// Runs whose recipes differ in the seed alone.
struct SeedGroup {
  std::string table;
  MeasuredModel model;
  std::set<int64_t> seeds;
};

// The group of a run, made where there is none yet.
const SeedGroup& group_of(const RunData& run, std::vector<SeedGroup>& groups) {
  const std::string table = run.recipe_name;
  std::string label = without_seed(run.name);
  for (SeedGroup& group : groups) {
    if (group.table != table) continue;
    const bool known =
        run.settings.is_map() && recipe_difference(*group.model.runs.front(), run).empty();
    if (known && group.seeds.insert(run.seed).second) {
      group.model.runs.push_back(&run);
      return group;
    }
    if (group.model.label == label) label = run.name;
  }
  groups.push_back({table, {label, {&run}}, {run.seed}});
  return groups.back();
}

std::vector<ComparedTable> own_tables(const std::vector<RunData>& runs) {
  std::vector<ComparedTable> tables;
  std::vector<SeedGroup> groups;
  for (const RunData& run : runs) {
    if (run.published) continue;
    const SeedGroup& group = group_of(run, groups);
    auto table = std::find_if(tables.begin(), tables.end(),
                              [&](const ComparedTable& each) { return each.name == group.table; });
    if (table == tables.end()) {
      tables.push_back({group.table, false, {}, "", {}});
      table = tables.end() - 1;
    }
    add_own_figures(table->cells, group.model.label, run);
  }
  for (ComparedTable& table : tables) {
    for (ComparedCell& cell : table.cells) summarise(cell);
    std::vector<MeasuredModel> models;
    for (const SeedGroup& group : groups) {
      if (group.table == table.name) models.push_back(group.model);
    }
    add_composites(table.cells, models);
    add_ranks(table.cells);
    table.note = note_on(table, {});
  }
  std::erase_if(tables, [](const ComparedTable& table) { return table.cells.empty(); });
  return tables;
}

}  // namespace

std::optional<double> ComparedCell::difference() const {
  if (row == nullptr || !row->value || !mean) return std::nullopt;
  return *mean - *row->value;
}

std::string ComparedCell::state() const {
  if (mean) return "";
  std::string text;
  int runs = 0;
  for (const auto& [reason, count] : without) runs += count;
  if (runs == 0) return "not run";
  for (const auto& [reason, count] : without) {
    text += concat(text.empty() ? "" : ", ", runs > 1 ? concat(count, ' ') : "", reason);
  }
  return text;
}

std::vector<ComparedTable> compare(const std::vector<RunData>& runs,
                                   const std::vector<ModelBenchLine>& benches) {
  require_comparable(runs);
  const std::vector<BenchGroup> groups = bench_groups(benches);
  std::vector<ComparedTable> tables = published_tables(runs, groups);
  for (ComparedTable& table : own_tables(runs)) tables.push_back(std::move(table));
  for (ComparedTable& table : speed_tables(groups)) tables.push_back(std::move(table));
  return tables;
}

}  // namespace linnet
