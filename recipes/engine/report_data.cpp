// Reading run directories.
#include "recipes/engine/report_data.h"

#include <charconv>
#include <cmath>

#include "core/config.h"
#include "core/files.h"
#include "core/yaml.h"
#include "recipes/engine/origin.h"

namespace linnet {
namespace {

constexpr const char* kMetrics = "metrics.jsonl";
constexpr uint64_t kMaxMetrics = uint64_t{2} << 30;
constexpr uint64_t kMaxText = uint64_t{4} << 20;
constexpr size_t kLongestLine = size_t{1} << 20;
constexpr int kDepth = 3;
constexpr size_t kMaxEvaluations = 1000;  // far more than a page can show
constexpr size_t kKeptReasons = 8, kKeptStretches = 20;
constexpr int64_t kLargestStep = int64_t{1} << 53;  // doubles count to here

EvaluationCurves& curves_of(RunData& run, const EvaluationCurves& read) {
  for (EvaluationCurves& curves : run.evaluations) {
    if (curves.split == read.split && curves.later == read.later &&
        curves.scored.reads_as(read.scored))
      return curves;
  }
  require(run.evaluations.size() < kMaxEvaluations, Cause{ErrorCode::out_of_range},
          "expected at most ", kMaxEvaluations, " kinds of evaluation (split, context, stride); ",
          "this line has another and is left out");
  run.evaluations.push_back({read.split, read.scored, {}, {}, {}, {}, read.later});
  return run.evaluations.back();
}

int64_t whole(const JsonValue& line, const char* key, int64_t otherwise = 0) {
  const JsonValue* value = line.find(key);
  return value == nullptr ? otherwise : value->integer();
}

// Earlier versions wrote neither stride nor chunk: a streaming line had its chunk as the context.
ScoredText scored_text(const JsonValue& line) {
  const JsonValue* mode = line.find("mode");
  const JsonValue* chunk = line.find("chunk");
  ScoredText scored;
  scored.streaming = chunk != nullptr || (mode != nullptr && mode->text() == "streaming");
  scored.length = chunk != nullptr ? chunk->integer() : line.at("context").integer();
  scored.stride = whole(line, "stride");
  return scored;
}

// The line's `kind`; lines of earlier versions have none.
std::string kind_of(const JsonValue& line) {
  if (const JsonValue* kind = line.find("kind")) return kind->text();
  if (line.find("split") != nullptr) return kEvaluationLine;
  return line.find("loss") != nullptr ? kTrainLine : "";
}

void add_point(MetricCurve& curve, double step, const JsonValue* value) {
  if (value != nullptr) curve.push_back({step, value->number()});
}

void append(MetricCurve& curve, const MetricCurve& points) {
  curve.insert(curve.end(), points.begin(), points.end());
}

// A time, or a count of tokens.
double amount(const JsonValue& value, const char* key) {
  const double number = value.number();
  require(std::isfinite(number) && number >= 0, Cause{ErrorCode::out_of_range, key}, "'", key,
          "' must be finite and not negative, found ", number);
  return number;
}

void read_evaluation(RunData& run, const JsonValue& line, double step, bool later) {
  EvaluationCurves read{line.at("split").text(), scored_text(line), {}, {}, {}, {}, later};
  add_point(read.nll, step, &line.at("nll"));
  add_point(read.perplexity, step, line.find("perplexity"));
  add_point(read.bits_per_byte, step, line.find("bits_per_byte"));
  add_point(read.accuracy, step, line.find("accuracy"));
  const int64_t examples = whole(line, "scored_examples", whole(line, "examples"));
  EvaluationCurves& curves = curves_of(run, read);
  append(curves.nll, read.nll);
  append(curves.perplexity, read.perplexity);
  append(curves.bits_per_byte, read.bits_per_byte);
  append(curves.accuracy, read.accuracy);
  curves.examples = examples;
}

void read_training(RunData& run, const JsonValue& line, double step) {
  const double tokens = amount(line.at("tokens"), "tokens");
  const double loss = line.at("loss").number(), lr = line.at("lr").number(),
               grad_norm = line.at("grad_norm").number(),
               tokens_per_s = line.at("tokens_per_s").number();
  const int64_t parameters = whole(line, "parameters"),
                tensors = whole(line, "peak_tensor_bytes", whole(line, "memory_bytes")),
                resident = whole(line, "peak_resident_bytes");
  run.loss.push_back({step, loss});
  run.lr.push_back({step, lr});
  run.grad_norm.push_back({step, grad_norm});
  run.tokens_per_s.push_back({step, tokens_per_s});
  run.tokens = tokens;
  run.parameters = parameters;
  run.peak_tensor_bytes = tensors;
  run.peak_resident_bytes = resident;
}

// Adds to `run` only what is read to the end: a line that throws leaves nothing behind.
void read_line(RunData& run, std::string_view text, bool later) {
  // The caller adds file and line to the message, so the parser's label is short.
  const JsonValue line = parse_json(text, "line", {.bytes = kLongestLine});
  const int64_t step = line.at("step").integer();
  require(0 <= step && step <= kLargestStep, Cause{ErrorCode::out_of_range, "step"},
          "'step' must be 0 to ", kLargestStep, ", found ", step);
  const std::string kind = kind_of(line);
  const JsonValue* wall = line.find("wall_seconds");
  const double wall_seconds = wall == nullptr ? run.wall_seconds : amount(*wall, "wall_seconds");
  if (kind == kEvaluationLine) {
    // Of rounded weights: no score of the run.
    if (line.find("weights") != nullptr) return;
    read_evaluation(run, line, static_cast<double>(step), later);
  } else if (kind == kTrainLine && !later) {
    read_training(run, line, static_cast<double>(step));
  } else {
    throw Error(Cause{ErrorCode::unknown_name, "kind"},
                concat("expected a line of the kind ", kTrainLine, " or ", kEvaluationLine,
                       ", found ", kind.empty() ? "none" : concat("'", kind, "'")));
  }
  run.wall_seconds = wall_seconds;
}

// Adds the lines of a file of the run; returns those that are left out.
MalformedLines read_lines(RunData& run, const char* name, bool later) {
  const std::string text = read_file(join_path(run.path, name), kMaxMetrics);
  MalformedLines malformed;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    ++number;
    try {
      read_line(run, std::string_view(text).substr(begin, end - begin), later);
    } catch (const Error& error) {
      malformed.add(number, concat(name, ':', number, ": ", error.what()));
    }
    begin = end + 1;
  }
  return malformed;
}

// The text of an optional file; a problem when it cannot be read.
std::string read_optional(RunData& run, const char* name) {
  const std::string path = join_path(run.path, name);
  try {
    return exists(path) ? read_file(path, kMaxText) : "";
  } catch (const Error& error) {
    run.problems.emplace_back(error.what());
    return "";
  }
}

// The run of a recipe and those of the points of its sweep, which lie inside of it.
void collect_runs(const std::string& path, int depth, std::vector<std::string>& found) {
  const bool run = exists(join_path(path, kMetrics));
  if (run) found.push_back(path);
  if (depth == 0) return;
  for (const std::string& name : file_system().list(path)) {
    if (run && (name == "checkpoints" || name == "tensorboard")) continue;
    const std::string child = join_path(path, name);
    if (is_directory(child)) collect_runs(child, depth - 1, found);
  }
}

// RunData::summary and positions: "A small sample; decoder of 4 layers, width 192, positions
// rotary; attention {name: lavo, rank: 32}" of a resolved recipe.
void summarise(RunData& run) {
  const ConfigNode* model = run.settings.find("model");
  if (model == nullptr) return;
  std::string summary;
  const ConfigNode* description = run.settings.find("description");
  if (description != nullptr && !description->raw().empty()) summary = description->raw() + "; ";
  const auto text = [model](const char* key) {
    const ConfigNode* value = model->find(key);
    return value == nullptr ? "?" : inline_text(*value);
  };
  const bool placed = model->find("positions") != nullptr;
  summary +=
      concat(text("kind"), " of ", text("layers"), " layers, width ", text("width"),
             placed ? ", positions " + text("positions") : "", "; attention ", text("attention"));
  run.summary = std::move(summary);
  if (placed) run.positions = text("positions");
}

// What RunData has of recipe.yaml. A recipe that does not read as one has no summary: the page
// shows its text anyway.
void read_settings(RunData& run) {
  try {
    run.settings = parse_yaml(run.recipe, "recipe.yaml");
    summarise(run);
    const ConfigNode* name = run.settings.find("name");
    if (name != nullptr && name->is_scalar() && !name->raw().empty()) run.recipe_name = name->raw();
    const ConfigNode* seed = run.settings.find("seed");
    if (seed != nullptr) {
      const std::string& text = seed->raw();
      std::from_chars(text.data(), text.data() + text.size(), run.seed);
    }
  } catch (const Error&) {
    run.settings = ConfigNode();
  }
  const ConfigNode* published = run.settings.find("published");
  if (published == nullptr || published->is_null()) return;
  try {
    const auto read = parse_config<PublishedConfig>(*published);
    if (read.has_rows()) run.published = read;
  } catch (const Error& error) {
    run.problems.push_back(concat("it is not compared with published numbers: ", error.what()));
  }
}

}  // namespace

void MalformedLines::add(int64_t number, const std::string& why) {
  ++count_;
  if (reasons_.size() < kKeptReasons) reasons_.push_back(why);
  if (!stretches_.empty() && stretches_.back().second + 1 == number && !more_) {
    stretches_.back().second = number;
  } else if (stretches_.size() < kKeptStretches) {
    stretches_.emplace_back(number, number);
  } else {
    more_ = true;
  }
}

std::string MalformedLines::numbers() const {
  std::string text;
  for (const auto& [first, last] : stretches_) {
    text += concat(text.empty() ? "" : ", ", first, first == last ? "" : concat("-", last));
  }
  return more_ ? text + " and others" : text;
}

RunData read_run(const std::string& run_directory) {
  RunData run;
  run.path = run_directory;
  run.name = run.recipe_name = file_name(run_directory);
  run.malformed = read_lines(run, kMetrics, false);
  if (exists(join_path(run_directory, kLaterEvaluations))) {
    const MalformedLines malformed = read_lines(run, kLaterEvaluations, true);
    if (malformed.count() > 0) {
      run.problems.push_back(concat("malformed lines of ", kLaterEvaluations, " are left out: ",
                                    malformed.numbers(), "; ", malformed.reasons().front()));
    }
  }
  run.recipe = read_optional(run, "recipe.yaml");
  read_settings(run);
  run.sample = read_optional(run, "sample.txt");
  run.end = run_end(run_directory, run.settings, run.loss.empty() ? 0 : run.loss.back().step);
  const std::string environment = read_optional(run, "environment.json");
  try {
    if (!environment.empty()) run.environment = parse_json(environment, "environment.json");
    const JsonValue* origin = run.environment.is_object() ? run.environment.find("init") : nullptr;
    if (origin != nullptr) {
      const Origin begun = origin_from(*origin);
      run.origin = begun.text();
      run.other_first_stage = !begun.published;
    }
  } catch (const Error& error) {
    run.problems.emplace_back(error.what());
  }
  return run;
}

std::vector<std::string> find_runs(const std::string& path) {
  std::vector<std::string> found;
  if (is_directory(path)) collect_runs(path, kDepth, found);
  require_usage(!found.empty(), Cause{ErrorCode::not_found, "", path}, path,
                " is no run directory and holds none: no ", kMetrics, " was found in it");
  return found;
}

}  // namespace linnet
