// Writing metrics, and taking them up again.
#include "recipes/engine/metrics.h"

#include <charconv>
#include <cmath>
#include <cstdio>

#include "core/config.h"
#include "core/log.h"
#include "core/progress.h"

namespace linnet {
namespace {

constexpr size_t kLongestLine = size_t{1} << 20;
constexpr double kRedrawEvery_s = 0.1;

// The step of a metrics line; empty when the line is not one.
std::optional<int64_t> step_of(std::string_view line) {
  try {
    return parse_json(line, "metrics.jsonl", {.bytes = kLongestLine}).at("step").integer();
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Cuts the file to what precedes the first line about a step after `resumed_at`, or a line that a
// crash left unfinished.
void truncate_to_step(const std::string& path, int64_t resumed_at) {
  if (!exists(path)) return;
  const std::string text = resumed_at < 0 ? "" : read_file(path);
  size_t kept = 0;
  size_t damaged = 0;
  while (kept < text.size()) {
    const size_t end = text.find('\n', kept);
    if (end == std::string::npos) break;
    const auto step = step_of(std::string_view(text).substr(kept, end - kept));
    if (step && *step > resumed_at) break;
    damaged += step ? 0 : 1;
    kept = end + 1;
  }
  if (damaged > 0) log_warning(path, " has ", damaged, " unreadable lines; they are kept");
  if (kept < file_bytes(path)) file_system().truncate(path, kept);
}

std::unique_ptr<File> open_metrics(const std::string& run_directory, int64_t resumed_at) {
  create_directories(run_directory);
  const std::string path = join_path(run_directory, "metrics.jsonl");
  truncate_to_step(path, resumed_at);
  return std::make_unique<File>(path, OpenMode::append);
}

constexpr const char* kEventFile = "events.out.tfevents.";

// A run that begins again from its first update has no curves but its own.
std::string prepare_tensorboard(const std::string& run_directory, int64_t resumed_at) {
  const std::string folder = join_path(run_directory, "tensorboard");
  if (resumed_at >= 0 || !is_directory(folder)) return folder;
  for (const std::string& name : file_system().list(folder)) {
    if (name.starts_with(kEventFile)) file_system().remove(join_path(folder, name));
  }
  return folder;
}

void add_more(JsonValue& line, const JsonValue& more) {
  for (const JsonMember& member : more.members()) line.set(member.key, member.value);
}

using Hyperparameters = std::vector<std::pair<std::string, HyperparameterValue>>;

// Numbers and booleans as such, lists as their YAML; what is null is left out.
void add_hyperparameters(const ConfigNode& node, const std::string& path, Hyperparameters& found) {
  if (node.is_null()) return;
  if (node.is_map()) {
    for (const ConfigEntry& entry : node.entries()) {
      add_hyperparameters(entry.value, path.empty() ? entry.key : concat(path, '.', entry.key),
                          found);
    }
    return;
  }
  if (!node.is_scalar()) {
    found.emplace_back(path, inline_text(node));
    return;
  }
  double number = 0;
  const std::string& raw = node.raw();
  const auto [end, error] = std::from_chars(raw.data(), raw.data() + raw.size(), number);
  if (!node.quoted() && (raw == "true" || raw == "false"))
    found.emplace_back(path, raw == "true");
  else if (!node.quoted() && error == std::errc() && end == raw.data() + raw.size())
    found.emplace_back(path, number);
  else
    found.emplace_back(path, raw);
}

// Some machines' invalid operations give NaN a sign, which says nothing to a reader.
double unsigned_nan(double value) {
  return std::isnan(value) ? std::abs(value) : value;
}

}  // namespace

std::string ScoredText::text(bool with_stride) const {
  if (length == 0) return "";
  if (streaming) return concat("chunks of ", length);
  const bool shown = stride > 0 && (with_stride || stride != length);
  return concat("context ", length, shown ? concat(", stride ", stride) : "");
}

std::string ScoredText::suffix() const {
  if (length == 0) return "";
  const bool overlap = stride > 0 && stride != length && !streaming;
  return concat('_', length, streaming ? "_streaming" : overlap ? concat("_stride_", stride) : "");
}

bool ScoredText::reads_as(const ScoredText& other) const {
  if (length != other.length || length == 0) return length == other.length;
  if (streaming || other.streaming) return streaming == other.streaming;
  const auto shown = [](const ScoredText& t) { return t.stride > 0 && t.stride != t.length; };
  return shown(*this) ? stride == other.stride : !shown(other);
}

JsonValue to_json(const TrainMetrics& metrics) {
  JsonValue line = JsonValue::object()
                       .set("kind", kTrainLine)
                       .set("step", metrics.step)
                       .set("tokens", metrics.tokens)
                       .set("loss", metrics.loss)
                       .set("lr", metrics.lr)
                       .set("grad_norm", metrics.grad_norm)
                       .set("tokens_per_s", metrics.tokens_per_s);
  add_more(line, metrics.more);
  return line;
}

JsonValue to_json(const EvaluationMetrics& metrics) {
  const ScoredText& scored = metrics.scored;
  JsonValue line = JsonValue::object()
                       .set("kind", kEvaluationLine)
                       .set("step", metrics.step)
                       .set("split", metrics.split)
                       .set(scored.streaming ? "chunk" : "context", scored.length);
  if (scored.stride > 0) line.set("stride", scored.stride);
  line.set("nll", metrics.nll);
  if (metrics.perplexity) line.set("perplexity", *metrics.perplexity);
  if (metrics.bits_per_byte) line.set("bits_per_byte", *metrics.bits_per_byte);
  if (metrics.accuracy) line.set("accuracy", *metrics.accuracy);
  add_more(line, metrics.more);
  return line;
}

MetricsLog::MetricsLog(const std::string& run_directory, int64_t resumed_at)
    : file_(open_metrics(run_directory, resumed_at)),
      tensorboard_(prepare_tensorboard(run_directory, resumed_at), resumed_at) {}

void MetricsLog::write(const TrainMetrics& metrics) {
  file_->write(to_json(metrics).dump() + "\n");
  tensorboard_.write_scalars(metrics.step, {{"train/loss", metrics.loss},
                                            {"train/lr", metrics.lr},
                                            {"train/grad_norm", metrics.grad_norm},
                                            {"train/tokens_per_s", metrics.tokens_per_s}});
}

void MetricsLog::write(const EvaluationMetrics& metrics) {
  file_->write(to_json(metrics).dump() + "\n");
  std::vector<std::pair<std::string, double>> scalars;
  const std::string suffix = metrics.scored.suffix();
  const auto add = [&](const char* name, std::optional<double> value) {
    if (value) scalars.emplace_back(concat(metrics.split, '/', name, suffix), *value);
  };
  add("nll", metrics.nll);
  add("perplexity", metrics.perplexity);
  add("bits_per_byte", metrics.bits_per_byte);
  add("accuracy", metrics.accuracy);
  tensorboard_.write_scalars(metrics.step, scalars);
}

void MetricsLog::write_hyperparameters(const ConfigNode& recipe) {
  Hyperparameters found;
  add_hyperparameters(recipe, "", found);
  tensorboard_.write_hyperparameters(found);
}

void MetricsLog::sync() {
  file_->sync();
}

std::string format_progress(const TrainMetrics& metrics, std::optional<int64_t> last_step,
                            std::optional<double> eta_s, uint64_t memory_bytes) {
  char numbers[160];
  const bool thousands = metrics.tokens_per_s >= 10'000;
  std::snprintf(numbers, sizeof(numbers), "  loss %.4f  lr %.2e  norm %.3g  %.*f%s tok/s",
                unsigned_nan(metrics.loss), metrics.lr, unsigned_nan(metrics.grad_norm),
                thousands ? 1 : 0, thousands ? metrics.tokens_per_s / 1000 : metrics.tokens_per_s,
                thousands ? "k" : "");
  std::string line = concat("step ", metrics.step);
  if (last_step) line += concat('/', *last_step);
  line += numbers;
  if (eta_s && std::isfinite(*eta_s) && *eta_s >= 0) line += "  ETA " + format_duration(*eta_s);
  return line + concat("  ", memory_bytes / 1'000'000, " MB");
}

void ProgressLine::show(const std::string& line) {
  const auto now = std::chrono::steady_clock::now();
  const double every_s = progress_is_visible() ? kRedrawEvery_s : plain_every_s_;
  if (last_shown_ && std::chrono::duration<double>(now - *last_shown_).count() < every_s) {
    held_back_ = line;
    return;
  }
  last_shown_ = now;
  held_back_.clear();
  if (progress_is_visible())
    show_progress(line);
  else
    log_info(line);
}

void ProgressLine::finish() {
  if (!held_back_.empty()) {
    last_shown_.reset();
    show(std::string(held_back_));
  }
  last_shown_.reset();
  end_progress();
}

}  // namespace linnet
