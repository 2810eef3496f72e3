#include "recipes/engine/model_bench.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/files.h"
#include "core/suggest.h"

namespace linnet {
namespace {

constexpr const char* kKind = "bench_model";
constexpr const char* kDecodeKind = "bench_decode";
constexpr const char* kNotOurs =
    "this is no line of 'linnet bench model --json' or 'bench decode --json'";
constexpr const char* kOutOfMemory = "out_of_memory";
constexpr uint64_t kMaxFile = uint64_t{64} << 20;
constexpr size_t kLongestLine = size_t{1} << 20;
constexpr std::array kKeys = {
    "kind",         "recipe",     "point",     "attention",  "table",       "task",
    "model",        "setting",    "overrides", "mode",       "length",      "batch",
    "rate",         "seconds",    "state",     "peak_bytes", "parameters",  "batch_given",
    "memory_bytes", "vocabulary", "precision", "device",     "device_name", "threads",
    "date",         "commit",     "prompt",    "steps",      "p95_seconds", "tokens_per_s",
    "state_bytes"};

std::string in_quotes(const std::string& text) {
  return concat("'", text, "'");
}

constexpr std::array kModes = {
    std::pair{BenchMode::train, "train"}, std::pair{BenchMode::inference, "inference"},
    std::pair{BenchMode::decode, "decode"}, std::pair{BenchMode::recompute, "recompute"}};

const char* name_of(BenchMode mode) {
  return std::find_if(kModes.begin(), kModes.end(),
                      [mode](const auto& each) { return each.first == mode; })
      ->second;
}

BenchMode mode_from_name(const std::string& name) {
  const auto found = std::find_if(kModes.begin(), kModes.end(),
                                  [&](const auto& each) { return each.second == name; });
  require(found != kModes.end(), Cause{ErrorCode::unknown_name, "mode"},
          "'mode' must be train or inference, of bench decode decode or recompute, found ",
          in_quotes(name));
  return found->first;
}

const char* kind_of(BenchMode mode) {
  return mode == BenchMode::decode || mode == BenchMode::recompute ? kDecodeKind : kKind;
}

int64_t count_at(const JsonValue& json, const char* key, int64_t least) {
  const int64_t count = json.at(key).integer();
  require(count >= least, Cause{ErrorCode::out_of_range, key}, "'", key, "' must be at least ",
          least, ", found ", count);
  return count;
}

void require_our_keys(const JsonValue& json) {
  const JsonValue* kind = json.is_object() ? json.find("kind") : nullptr;
  require(
      kind != nullptr && kind->is_text() && (kind->text() == kKind || kind->text() == kDecodeKind),
      Cause{ErrorCode::unknown_name, "kind"}, kNotOurs,
      "; give run directories by their folders, not their files");
  const std::vector<std::string> known(kKeys.begin(), kKeys.end());
  for (const JsonMember& member : json.members()) {
    require(std::count(known.begin(), known.end(), member.key) > 0,
            Cause{ErrorCode::unknown_key, member.key}, "unknown key ", in_quotes(member.key), "; ",
            suggestion(member.key, known));
  }
}

std::optional<PublishedConfig> read_published(const JsonValue& json) {
  if (json.find("table") == nullptr) return std::nullopt;
  PublishedConfig published;
  published.table = json.at("table").text();
  published.task = json.at("task").text();
  published.model = json.at("model").text();
  published.setting = json.at("setting").text();
  require(!rows_of(published).empty(), Cause{ErrorCode::unknown_name, "table"},
          "no published row is of ", in_quotes(published.table), ", task ",
          in_quotes(published.task), ", model ", in_quotes(published.model), ", setting ",
          in_quotes(published.setting));
  return published;
}

void read_figures(const JsonValue& json, ModelBench& bench) {
  if (const JsonValue* state = json.find("state")) {
    require(state->text() == kOutOfMemory, Cause{ErrorCode::unknown_name, "state"},
            "'state' must be ", kOutOfMemory, ", found ", in_quotes(state->text()));
    return;
  }
  bench.batch = count_at(json, "batch", 1);
  bench.seconds = json.at("seconds").number();
  const double rate = json.at("rate").number();
  require(bench.seconds > 0 && std::abs(rate * bench.seconds - 1) < 1e-6,
          Cause{ErrorCode::out_of_range, "seconds"}, "'seconds' (", bench.seconds, ") and 'rate' (",
          rate, ") must be positive, and their product 1");
  bench.peak_bytes = static_cast<size_t>(count_at(json, "peak_bytes", 1));
  bench.parameters = count_at(json, "parameters", 1);
}

DecodeFigures read_decode(const JsonValue& json) {
  DecodeFigures decode;
  decode.prompt = count_at(json, "prompt", 1);
  decode.steps = count_at(json, "steps", 1);
  decode.p95_seconds = json.at("p95_seconds").number();
  decode.tokens_per_s = json.at("tokens_per_s").number();
  decode.state_bytes = static_cast<size_t>(count_at(json, "state_bytes", 0));
  return decode;
}

ModelBenchLine from_json(const JsonValue& json) {
  require_our_keys(json);
  ModelBenchLine line;
  ModelBench& bench = line.bench;
  bench.recipe = json.at("recipe").text();
  bench.point = json.at("point").text();
  bench.attention = json.at("attention").text();
  bench.published = read_published(json);
  bench.precision = json.at("precision").text();
  bench.length = count_at(json, "length", 1);
  read_figures(json, bench);
  line.mode = mode_from_name(json.at("mode").text());
  require(json.at("kind").text() == kind_of(line.mode), Cause{ErrorCode::conflict, "mode"}, "mode ",
          name_of(line.mode), " is of lines of kind ", kind_of(line.mode));
  if (line.mode == BenchMode::decode && bench.fits()) bench.decode = read_decode(json);
  for (const JsonValue& text : json.at("overrides").elements())
    line.overrides.push_back(text.text());
  if (json.at("batch_given").boolean()) line.batch_given = count_at(json, "batch", 1);
  if (json.find("memory_bytes") != nullptr) line.memory_bytes = count_at(json, "memory_bytes", 1);
  line.vocabulary = count_at(json, "vocabulary", 1);
  line.device = json.at("device").text();
  line.device_name = json.at("device_name").text();
  line.threads = count_at(json, "threads", 1);
  line.date = json.at("date").text();
  line.commit = json.at("commit").text();
  return line;
}

}  // namespace

JsonValue to_json(const ModelBenchLine& line) {
  const ModelBench& bench = line.bench;
  JsonValue json = JsonValue::object()
                       .set("kind", kind_of(line.mode))
                       .set("recipe", bench.recipe)
                       .set("point", bench.point)
                       .set("attention", bench.attention);
  if (bench.published && !rows_of(*bench.published).empty()) {
    json.set("table", bench.published->table)
        .set("task", bench.published->task)
        .set("model", bench.published->model)
        .set("setting", bench.published->setting);
  }
  JsonValue overrides = JsonValue::array();
  for (const std::string& text : line.overrides) overrides.push(text);
  json.set("overrides", std::move(overrides))
      .set("mode", name_of(line.mode))
      .set("length", bench.length);
  if (bench.fits()) {
    json.set("batch", bench.batch)
        .set("rate", bench.rate())
        .set("seconds", bench.seconds)
        .set("peak_bytes", bench.peak_bytes)
        .set("parameters", bench.parameters);
    if (bench.decode) {
      json.set("prompt", bench.decode->prompt)
          .set("steps", bench.decode->steps)
          .set("p95_seconds", bench.decode->p95_seconds)
          .set("tokens_per_s", bench.decode->tokens_per_s)
          .set("state_bytes", bench.decode->state_bytes);
    }
  } else {
    json.set("state", kOutOfMemory);
    if (line.batch_given) json.set("batch", *line.batch_given);
  }
  json.set("batch_given", line.batch_given.has_value());
  if (line.memory_bytes) json.set("memory_bytes", *line.memory_bytes);
  return json.set("vocabulary", line.vocabulary)
      .set("precision", bench.precision)
      .set("device", line.device)
      .set("device_name", line.device_name)
      .set("threads", line.threads)
      .set("date", line.date)
      .set("commit", line.commit);
}

std::vector<ModelBenchLine> read_model_benches(const std::string& path) {
  const std::string text = read_file(path, kMaxFile);
  std::vector<ModelBenchLine> lines;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    const std::string place = concat(path, ":", ++number);
    require_usage(end != std::string::npos, Cause{ErrorCode::malformed, "", place}, place,
                  ": the last line is cut; delete it and measure its point again");
    try {
      const std::string_view one = std::string_view(text).substr(begin, end - begin);
      lines.push_back(from_json(parse_json(one, "line", {.bytes = kLongestLine})));
      lines.back().place = place;
    } catch (const Error& error) {
      throw UsageError({error.code(), error.key(), place}, concat(place, ": ", error.what()));
    }
    begin = end + 1;
  }
  require_usage(!lines.empty(), Cause{ErrorCode::not_found, "", path}, path,
                " has no line of 'linnet bench model --json' or 'bench decode --json'");
  return lines;
}

}  // namespace linnet
