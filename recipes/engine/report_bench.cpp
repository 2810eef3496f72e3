#include "recipes/engine/report_bench.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>

#include "core/echo.h"

namespace linnet {
namespace {

constexpr double kMegabyte = 1e6;

// The sizes of the papers' tables; no mode: both, no batch: found by doubling.
struct Protocol {
  std::string_view table;
  std::optional<BenchMode> mode;
  std::optional<int64_t> batch;
  int64_t vocabulary;
};
constexpr std::array kProtocols = {Protocol{"leapformer T2", BenchMode::train, 32, 256},
                                   Protocol{"abc T6", BenchMode::inference, 16, 50265},
                                   Protocol{"survey Fig4", std::nullopt, std::nullopt, 50265}};

bool compare_with_each_other(const ModelBenchLine& a, const ModelBenchLine& b) {
  return a.bench.recipe == b.bench.recipe && a.bench.precision == b.bench.precision &&
         a.mode == b.mode && a.overrides == b.overrides && a.batch_given == b.batch_given &&
         a.bench.decode.has_value() == b.bench.decode.has_value() &&
         (!a.bench.decode || a.bench.decode->prompt == b.bench.decode->prompt) &&
         a.memory_bytes == b.memory_bytes && a.vocabulary == b.vocabulary && a.device == b.device &&
         a.device_name == b.device_name && a.threads == b.threads;
}

bool same_cell(const ModelBenchLine& a, const ModelBenchLine& b) {
  return a.bench.point == b.bench.point && a.bench.length == b.bench.length;
}

// What `rate` counts.
std::string name_of_passes(const ModelBenchLine& line) {
  switch (line.mode) {
    case BenchMode::train:
      return "updates";
    case BenchMode::inference:
      return "forward passes";
    case BenchMode::decode:
      return concat("steps from the decode state behind ",
                    line.bench.decode ? line.bench.decode->prompt : 0, " tokens");
    case BenchMode::recompute:
      return "a pass over the text for each token";
  }
  throw Error("name_of_passes: not a mode");
}

std::string title_of(const ModelBenchLine& line) {
  std::string title = concat(line.bench.recipe, ": ", name_of_passes(line));
  if (line.batch_given)
    title += concat(", batch ", *line.batch_given);
  else
    title += ", the largest batch";
  if (line.memory_bytes && !line.batch_given)
    title += concat(" in ", format_bytes(*line.memory_bytes));
  title +=
      concat(", ", line.vocabulary, " words, ", line.bench.precision, ", on ", line.device_name);
  if (line.device == "cpu")
    title += concat(", ", line.threads, line.threads == 1 ? " thread" : " threads");
  for (const std::string& change : line.overrides) title += concat(", ", change);
  return title;
}

const ModelBenchLine* softmax_at(int64_t length, const BenchGroup& group) {
  for (const ModelBenchLine* line : group.lines) {
    if (line->bench.attention == "softmax" && line->bench.length == length && line->bench.fits())
      return line;
  }
  return nullptr;
}

// Letters and digits alone, small.
std::string plain(std::string_view text) {
  std::string kept;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      kept += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return kept;
}

// Whether a device is the printed one: "V100", "TitanRTX-24GB". One device is never "2xV100-32GB".
bool is_device(const std::string& name, const std::string& printed) {
  const std::string card = plain(printed.substr(0, printed.find('-')));
  return plain(name).find(card) != std::string::npos;
}

std::string or_none(const std::optional<double>& value) {
  return value ? format_value(*value, "%.3g") : kNoValue;
}

}  // namespace

std::vector<BenchGroup> bench_groups(const std::vector<ModelBenchLine>& benches) {
  std::vector<BenchGroup> groups;
  for (const ModelBenchLine& line : benches) {
    auto group = std::find_if(groups.begin(), groups.end(), [&](const BenchGroup& each) {
      return compare_with_each_other(*each.lines.front(), line);
    });
    if (group == groups.end()) {
      groups.push_back({title_of(line), {&line}});
      continue;
    }
    const auto before = std::find_if(group->lines.begin(), group->lines.end(),
                                     [&](const auto* other) { return same_cell(*other, line); });
    if (before == group->lines.end()) {
      group->lines.push_back(&line);
      continue;
    }
    const ModelBench &first = (*before)->bench, &second = line.bench;
    require_usage(!first.fits() || !second.fits() || first.parameters == second.parameters,
                  Cause{ErrorCode::conflict, "parameters", line.place},
                  shell_word((*before)->place), " and ", shell_word(line.place), " measure ",
                  model_of(second), " of ", second.recipe, " at length ", second.length,
                  " with different models (", first.parameters, " and ", second.parameters,
                  " parameters); report them apart");
    *before = &line;
  }
  return groups;
}

std::string model_of(const ModelBench& bench) {
  if (bench.point.empty()) return bench.recipe;
  const bool one_axis = bench.point.find(',') == std::string::npos;
  return one_axis ? bench.point.substr(bench.point.find('=') + 1) : bench.point;
}

BenchFigures figures_of(const ModelBenchLine& line, const BenchGroup& group) {
  const auto of_row = [](const ModelBench& bench) {
    const auto batch = static_cast<double>(bench.batch);
    return std::pair(bench.seconds / batch, static_cast<double>(bench.peak_bytes) / batch);
  };
  const auto [seconds, bytes] = of_row(line.bench);
  BenchFigures figures{
      line.bench.rate(), 1e3 * seconds, static_cast<double>(line.bench.peak_bytes) / kMegabyte,
      bytes / kMegabyte, std::nullopt,  std::nullopt};
  if (const ModelBenchLine* softmax = softmax_at(line.bench.length, group)) {
    const auto [softmax_seconds, softmax_bytes] = of_row(softmax->bench);
    figures.speedup = softmax_seconds / seconds;
    figures.memory_ratio = bytes / softmax_bytes;
  }
  return figures;
}

bool has_published_sizes(const ModelBenchLine& line) {
  if (!line.bench.published || !line.overrides.empty()) return false;
  const auto protocol =
      std::find_if(kProtocols.begin(), kProtocols.end(),
                   [&](const Protocol& each) { return each.table == line.bench.published->table; });
  return protocol != kProtocols.end() && (!protocol->mode || *protocol->mode == line.mode) &&
         protocol->batch == line.batch_given && protocol->vocabulary == line.vocabulary;
}

std::string departure_of(const ModelBenchLine& line, const PublishedRow& row) {
  if (!has_published_sizes(line)) return "other sizes";
  const std::string hardware = setting_of(row, "hardware");
  return is_device(line.device_name, hardware) ? "" : "other device";
}

Table bench_table(const BenchGroup& group) {
  Table table{
      {"model", "length", "batch", "batches per second", "ms per row", "speed-up", "ms p95",
       "tokens/s so far", "state", "peak memory", "MB per row", "memory ratio", "parameters"},
      {}};
  for (const ModelBenchLine* line : group.lines) {
    const ModelBench& bench = line->bench;
    std::vector<std::string> row{model_of(bench), std::to_string(bench.length)};
    if (bench.fits()) {
      const BenchFigures figures = figures_of(*line, group);
      const std::optional<DecodeFigures>& decode = bench.decode;
      for (const std::string& cell :
           {std::to_string(bench.batch), format_value(figures.rate), format_value(figures.row_ms),
            or_none(figures.speedup), decode ? format_value(1e3 * decode->p95_seconds) : kNoValue,
            decode ? format_value(decode->tokens_per_s) : kNoValue,
            decode ? format_bytes(static_cast<int64_t>(decode->state_bytes)) : kNoValue,
            format_bytes(static_cast<int64_t>(bench.peak_bytes)), format_value(figures.row_mb),
            or_none(figures.memory_ratio), std::to_string(bench.parameters)})
        row.push_back(cell);
    } else {
      row.push_back(line->batch_given ? std::to_string(*line->batch_given) : kNoValue);
      row.emplace_back("out of memory");
      row.resize(table.head.size(), kNoValue);
    }
    table.rows.push_back(row);
  }
  return without_empty(std::move(table),
                       {"speed-up", "ms p95", "tokens/s so far", "state", "memory ratio"});
}

std::string bench_note(const BenchGroup& group) {
  std::set<std::string> days, commits;
  bool ratios = false;
  for (const ModelBenchLine* line : group.lines) {
    days.insert(line->date.substr(0, line->date.find('T')));
    commits.insert(line->commit);
    ratios = ratios || softmax_at(line->bench.length, group) != nullptr;
  }
  std::string note = "Measured on ";
  note += *days.begin();
  if (days.size() > 1) note += concat(" to ", *days.rbegin());
  note += ", commit";
  for (const std::string& commit : commits) note += concat(" ", commit);
  note += ".";
  if (ratios) {
    note +=
        " Speed-up: rows per second over those of softmax attention; memory ratio: bytes per row "
        "over its.";
  }
  return note;
}

}  // namespace linnet
