// Assembling the page.
#include "recipes/engine/report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "core/echo.h"
#include "core/files.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/version.h"
#include "recipes/engine/report_chart.h"
#include "recipes/engine/report_export.h"
#include "recipes/engine/report_over.h"
#include "recipes/engine/report_plots.h"
#include "recipes/engine/report_style.h"
#include "recipes/engine/report_table.h"

namespace linnet {
namespace {

constexpr std::string_view kPageStart =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>";
constexpr std::string_view kTitleEnd = " – linnet</title>";
constexpr const char* kPageEnd = "</main></body></html>\n";
constexpr size_t kMaxTitle = 1 << 16;
constexpr std::string_view kContext = "context ";

// The last value of a curve, "–" when it has none.
std::string last_of(const MetricCurve& curve, const char* format = "%.4g") {
  return curve.empty() ? "–" : format_value(curve.back().value, format);
}

double median_of(MetricCurve curve) {
  std::erase_if(curve, [](const MetricPoint& point) { return std::isnan(point.value); });
  if (curve.empty()) return std::nan("");
  const auto middle = curve.begin() + static_cast<int64_t>(curve.size() / 2);
  std::nth_element(curve.begin(), middle, curve.end(),
                   [](const auto& a, const auto& b) { return a.value < b.value; });
  return middle->value;
}

// The best finite point: smallest, or largest where more is better.
std::optional<MetricPoint> best_of(const MetricCurve& curve, bool largest) {
  std::optional<MetricPoint> best;
  for (const MetricPoint& point : curve) {
    if (!std::isfinite(point.value)) continue;
    if (!best || (largest ? point.value > best->value : point.value < best->value)) best = point;
  }
  return best;
}

// "1234567", whole, as the log and the checkpoint have it.
std::string format_parameters(const RunData& run) {
  return run.parameters == 0 ? "–" : std::to_string(run.parameters);
}

std::string format_wall_time(const RunData& run) {
  return run.wall_seconds == 0 ? "–" : format_duration(run.wall_seconds);
}

Table evaluation_table(const std::vector<RunData>& runs) {
  Table table{{"run", "split", "context", "step", "nll", "perplexity", "best perplexity",
               "bits/byte", "accuracy", "best accuracy"},
              {}};
  const auto best_text = [](const std::optional<MetricPoint>& best) {
    return best ? concat(format_value(best->value), " at ", format_tick(best->step)) : "–";
  };
  for (const RunData& run : runs) {
    for (const EvaluationCurves& curves : run.evaluations) {
      const ScoredText& scored = curves.scored;
      // Under the head "context", the word is said.
      const std::string context = scored.text().empty() ? "–"
                                  : scored.streaming    ? scored.text()
                                                        : scored.text().substr(kContext.size());
      table.rows.push_back({run.name, concat(curves.split, curves.later ? " (evaluate)" : ""),
                            context, format_value(curves.nll.back().step, "%.0f"),
                            last_of(curves.nll), last_of(curves.perplexity),
                            best_text(best_of(curves.perplexity, false)),
                            last_of(curves.bits_per_byte), last_of(curves.accuracy),
                            best_text(best_of(curves.accuracy, true))});
    }
  }
  return without_empty(std::move(table), {"context", "perplexity", "best perplexity", "bits/byte",
                                          "accuracy", "best accuracy"});
}

// One curve a run.
Chart chart_of(const std::vector<RunData>& runs, const char* title, const char* y_label,
               MetricCurve RunData::*curve) {
  Chart chart{title, y_label, {}, false};
  for (size_t i = 0; i < runs.size(); ++i) {
    const int index = static_cast<int>(i);
    chart.series.push_back(
        {runs[i].name, runs[i].*curve, index % kChartColors, index / kChartColors, false});
  }
  return chart;
}

// "validation, context 512"; of whole examples, "validation".
std::string place_of(const EvaluationCurves& curves) {
  const std::string scored = curves.scored.text();
  return concat(curves.split, scored.empty() ? "" : ", ", scored);
}

// One curve a run and context: the colour tells the run, or the context when there is one run.
Chart evaluation_chart(const std::vector<RunData>& runs, const char* title, const char* y_label,
                       MetricCurve EvaluationCurves::*curve) {
  Chart chart{title, y_label, {}, false};
  for (size_t i = 0; i < runs.size(); ++i) {
    int index = 0;
    for (const EvaluationCurves& curves : runs[i].evaluations) {
      if ((curves.*curve).empty() || curves.later) continue;
      std::string name = place_of(curves);
      if (runs.size() > 1) name = concat(runs[i].name, ": ", name);
      const int color = runs.size() > 1 ? static_cast<int>(i) : index;
      const int dash = runs.size() > 1 ? index : index / kChartColors;
      chart.series.push_back({name, curves.*curve, color % kChartColors, dash, true});
      ++index;
    }
  }
  return chart;
}

std::string charts(const std::vector<RunData>& runs) {
  std::string html = "<div class=\"charts\">";
  html += chart_to_html(chart_of(runs, "Training loss", "nats per target", &RunData::loss));
  const Chart perplexity =
      evaluation_chart(runs, "Validation perplexity", "perplexity", &EvaluationCurves::perplexity);
  const Chart accuracy =
      evaluation_chart(runs, "Validation accuracy", "accuracy", &EvaluationCurves::accuracy);
  // A classifier has no perplexity; a run that was not evaluated yet shows an empty chart.
  if (!perplexity.series.empty() || accuracy.series.empty()) html += chart_to_html(perplexity);
  if (!accuracy.series.empty()) html += chart_to_html(accuracy);
  const Chart bits = evaluation_chart(runs, "Validation bits per byte", "bits per byte",
                                      &EvaluationCurves::bits_per_byte);
  if (!bits.series.empty()) html += chart_to_html(bits);
  Chart lr = chart_of(runs, "Learning rate", "learning rate", &RunData::lr);
  lr.from_zero = true;
  html += chart_to_html(lr);
  html +=
      chart_to_html(chart_of(runs, "Gradient norm", "norm before clipping", &RunData::grad_norm));
  Chart throughput = chart_of(runs, "Throughput", "tokens per second", &RunData::tokens_per_s);
  throughput.from_zero = true;
  return html + chart_to_html(throughput) + "</div>\n";
}

// "1234567 parameters; wall time 3:20; peak memory 812 MB RAM; at
// most 96 MB of tensors": as much of it as the run's files say.
std::string facts(const RunData& run) {
  std::string text;
  const auto add = [&text](bool known, const auto&... parts) {
    if (known) text += concat(text.empty() ? "" : "; ", parts...);
  };
  add(!run.origin.empty(), "began from ", run.origin);
  add(run.parameters > 0, run.parameters, " parameters");
  add(run.wall_seconds > 0, "wall time ", format_wall_time(run));
  add(run.peak_resident_bytes > 0, "peak memory ", format_bytes(run.peak_resident_bytes), " RAM");
  add(run.peak_tensor_bytes > 0, "at most ", format_bytes(run.peak_tensor_bytes), " of tensors");
  return text;
}

std::string tiles(const RunData& run) {
  std::string html = "<div class=\"tiles\">";
  const auto tile = [&](const std::string& value, const std::string& what) {
    html += concat("<div class=\"tile\"><b>", escape_html(value), "</b><span>", escape_html(what),
                   "</span></div>");
  };
  tile(run.loss.empty() ? "0" : format_value(run.loss.back().step, "%.0f"), "steps");
  tile(format_tick(run.tokens), "tokens");
  tile(last_of(run.loss), "training loss, nats per target");
  for (const EvaluationCurves& curves : run.evaluations) {
    const std::string where = ", " + place_of(curves);
    if (const auto best = best_of(curves.perplexity, false))
      tile(format_value(best->value), concat("best perplexity", where));
    if (const auto best = best_of(curves.bits_per_byte, false))
      tile(format_value(best->value), concat("best bits/byte", where));
    if (const auto best = best_of(curves.accuracy, true))
      tile(format_value(100 * best->value, "%.1f %%"), concat("best accuracy", where));
    break;  // the first is the training context; the table has them all
  }
  if (!run.tokens_per_s.empty())
    tile(format_value(median_of(run.tokens_per_s), "%.0f"), "tokens/s (median)");
  if (run.parameters > 0) tile(format_tick(static_cast<double>(run.parameters)), "parameters");
  if (run.wall_seconds > 0) tile(format_wall_time(run), "wall time");
  if (run.peak_resident_bytes > 0) tile(format_bytes(run.peak_resident_bytes), "peak RAM");
  return html + "</div>\n";
}

// "3 lines of metrics.jsonl are malformed and left out: 2-3, 17".
std::string malformed_text(const MalformedLines& lines) {
  return concat(lines.count(), lines.count() == 1 ? " line" : " lines", " of metrics.jsonl ",
                lines.count() == 1 ? "is" : "are", " malformed and left out: ", lines.numbers());
}

std::string problems(const std::vector<RunData>& runs) {
  std::string html;
  for (const RunData& run : runs) {
    const auto card = [&](const std::string& problem, const std::vector<std::string>& reasons) {
      html += concat("<div class=\"card problems\"><b>", escape_html(run.name), ": ",
                     escape_html(problem), "</b>", reasons.empty() ? "" : "<ul>");
      for (const std::string& reason : reasons)
        html += concat("<li>", escape_html(reason), "</li>");
      html += concat(reasons.empty() ? "" : "</ul>", "</div>\n");
    };
    if (run.malformed.count() > 0) card(malformed_text(run.malformed), run.malformed.reasons());
    for (const std::string& problem : run.problems) card(problem, {});
  }
  return html;
}

std::string texts(const std::vector<RunData>& runs) {
  std::string html;
  for (const RunData& run : runs) {
    if (run.sample.empty()) continue;
    html += concat("<h2>Sample", runs.size() > 1 ? concat(" of ", escape_html(run.name)) : "",
                   "</h2><div class=\"card\"><pre>", escape_html(run.sample), "</pre></div>\n");
  }
  std::string folds;
  for (const RunData& run : runs) {
    const auto fold = [&](const char* what, const std::string& text) {
      if (text.empty()) return;
      folds += concat("<details class=\"card\"><summary>", what, " of ", escape_html(run.name),
                      "</summary><pre>", escape_html(text), "</pre></details>\n");
    };
    fold("Recipe", run.recipe);
    fold("Environment", run.environment.is_null() ? "" : run.environment.dump(2));
  }
  return folds.empty() ? html : html + concat("<h2>How it was made</h2>\n", folds);
}

}  // namespace

Table training_table(const std::vector<RunData>& runs) {
  Table table{{"run", "parameters", "positions", "steps", "tokens", "loss", "gradient norm",
               "tokens/s (median)", "wall time", "peak RAM", "peak tensors"},
              {}};
  for (const RunData& run : runs) {
    const double steps = run.loss.empty() ? 0 : run.loss.back().step;
    table.rows.push_back(
        {run.name, format_parameters(run), run.positions.empty() ? "–" : run.positions,
         format_value(steps, "%.0f"), format_tick(run.tokens), last_of(run.loss),
         last_of(run.grad_norm, "%.3g"),
         run.tokens_per_s.empty() ? "–" : format_value(median_of(run.tokens_per_s), "%.0f"),
         format_wall_time(run), format_bytes(run.peak_resident_bytes),
         format_bytes(run.peak_tensor_bytes)});
  }
  return without_empty(std::move(table),
                       {"parameters", "positions", "wall time", "peak RAM", "peak tensors"});
}

std::string report_html(const std::vector<RunData>& runs, const std::string& over,
                        const std::vector<ModelBenchLine>& benches) {
  require(!runs.empty() || !benches.empty(), "a report needs at least one run");
  const std::string title = runs.empty()       ? "speed and memory"
                            : runs.size() == 1 ? runs[0].name
                                               : concat(runs.size(), " runs");
  std::string html = concat(kPageStart, escape_html(title), kTitleEnd, "\n<style>", kReportStyle,
                            "</style></head>\n<body><main>\n<h1>", escape_html(title),
                            "</h1>\n<div class=\"quiet\">");
  html += concat("linnet ", escape_html(linnet_version()));
  if (runs.size() == 1) html += concat(" · ", escape_html(runs[0].path));
  html += "</div>\n";
  for (const RunData& run : runs) {
    for (const std::string& line : {run.summary, facts(run)}) {
      if (line.empty()) continue;
      html += concat("<div class=\"quiet\">", runs.size() > 1 ? escape_html(run.name) + ": " : "",
                     escape_html(line), "</div>\n");
    }
  }
  if (runs.size() == 1) html += tiles(runs[0]);
  html += problems(runs);
  if (!over.empty())
    html += concat("<div class=\"charts\">", chart_to_html(chart_over(runs, over)), "</div>\n");
  html += comparison_html(compare(runs, benches));
  const std::string costs = cost_charts(runs) + bench_charts(bench_groups(benches));
  if (!costs.empty()) html += concat("<div class=\"charts\">", costs, "</div>\n");
  if (runs.empty()) return html + kPageEnd;
  html += charts(runs);
  html += concat("<h2>Results</h2>\n", table_to_html(training_table(runs)));
  const Table evaluations = evaluation_table(runs);
  if (!evaluations.rows.empty())
    html += concat("<h2>Evaluations</h2>\n", table_to_html(evaluations));
  return html + texts(runs) + kPageEnd;
}

std::string report_text(const std::vector<RunData>& runs,
                        const std::vector<ModelBenchLine>& benches) {
  std::string text;
  if (!runs.empty()) text = table_to_text(training_table(runs));
  const Table evaluations = evaluation_table(runs);
  if (!evaluations.rows.empty()) text += concat("\n", table_to_text(evaluations));
  const std::string comparison = comparison_text(compare(runs, benches));
  return printable(text) + (text.empty() || comparison.empty() ? "" : "\n") + comparison;
}

std::vector<RunData> read_runs(const std::vector<std::string>& run_directories) {
  std::vector<RunData> runs;
  std::map<std::string, int> uses;
  for (const std::string& directory : run_directories) {
    runs.push_back(read_run(directory));
    const MalformedLines& malformed = runs.back().malformed;
    if (malformed.count() > 0) {
      log_warning(directory, ": ", malformed_text(malformed), "; ", malformed.reasons().front());
    }
    for (const std::string& problem : runs.back().problems) log_warning(directory, ": ", problem);
    ++uses[runs.back().name];
  }
  for (RunData& run : runs) {
    if (uses[run.name] > 1) run.name = run.path;
  }
  return runs;
}

bool may_hold_report(const std::string& path) {
  if (!exists(path)) return true;
  std::string begin(kMaxTitle, '\0');
  File file(path, OpenMode::read);
  begin.resize(file.read(begin));
  return begin.starts_with(kPageStart) && begin.find(kTitleEnd) != std::string::npos;
}

void write_report(const std::vector<std::string>& run_directories, const std::string& html_path) {
  write_file_atomically(html_path, report_html(read_runs(run_directories)));
}

}  // namespace linnet
