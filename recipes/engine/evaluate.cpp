#include "recipes/engine/evaluate.h"

#include <algorithm>
#include <iomanip>
#include <map>
#include <sstream>

#include "attention/layer_choice.h"
#include "core/files.h"
#include "core/log.h"
#include "core/yaml.h"
#include "layers/attention_sections.h"
#include "recipes/engine/make_task.h"
#include "recipes/engine/packed_model.h"
#include "recipes/engine/run_state.h"
#include "recipes/engine/scoring.h"

namespace linnet {

JsonValue EvaluateReport::json() const {
  const auto lines_of = [this](const std::vector<Score>& list) {
    JsonValue lines = JsonValue::array();
    for (const Score& score : list) lines.push(to_json(score.metrics(step)));
    return lines;
  };
  JsonValue result = JsonValue::object()
                         .set("checkpoint", checkpoint)
                         .set("step", step)
                         .set("recipe", recipe)
                         .set("mechanism", mechanism)
                         .set("attention", attention)
                         .set("positions", positions)
                         .set("parameters", parameters)
                         .set("data", data)
                         .set("scores", lines_of(scores));
  if (weights != WeightFormat::f32) {
    result.set("weights", name_of(weights)).set("weights_scores", lines_of(packed_scores));
  }
  if (!baselines.empty()) {
    JsonValue others = JsonValue::object();
    for (const Baseline& baseline : baselines) {
      JsonValue one = JsonValue::object().set("perplexity", baseline.perplexity);
      if (baseline.bits_per_byte) one.set("bits_per_byte", *baseline.bits_per_byte);
      others.set(baseline.name, std::move(one));
    }
    result.set("baselines", others);
  }
  return result;
}

std::string EvaluateReport::text() const {
  std::ostringstream out;
  out << "checkpoint " << checkpoint << "\nrecipe " << recipe << ", attention " << attention
      << ", positions " << positions << ", " << parameters << " parameters\n";
  for (const Score& score : scores) out << score.text() << "\n";
  if (!packed_scores.empty()) out << "with weights in " << name_of(weights) << "\n";
  for (const Score& score : packed_scores) out << score.text() << "\n";
  if (baselines.empty()) return out.str();
  const auto row = [&out](const std::string& name, double perplexity, std::optional<double> bits) {
    out << std::left << std::setw(24) << name << std::right << std::fixed << std::setprecision(3)
        << std::setw(14) << perplexity;
    if (bits) out << std::setw(16) << *bits;
    out << "\n";
  };
  out << "\nthe same tokens" << std::setw(23) << "perplexity";
  if (baselines[0].bits_per_byte) out << std::setw(16) << "bits per byte";
  out << "\n";
  for (const Baseline& baseline : baselines) {
    row(baseline.name, baseline.perplexity, baseline.bits_per_byte);
  }
  for (const Score& score : scores) {
    row(score.mode.empty() ? "this model" : concat("this model, ", score.scored.text()),
        score.perplexity(), score.bytes > 0 ? std::optional(score.bits_per_byte()) : std::nullopt);
  }
  return out.str();
}

namespace {

ScoreOptions score_options(const EvaluateRequest& request, const EvaluateConfig& recipe) {
  require_usage(!request.carry_state || !request.stride,
                Cause{ErrorCode::conflict, "evaluate.stride"},
                "a stride and carried state exclude each other: carried state reads each token "
                "once");
  ScoreOptions options;
  options.split = split_from_name(request.split.value_or(recipe.split));
  const bool read_otherwise = request.stride || request.carry_state;
  options.listed = !recipe.protocols.empty() && request.contexts.empty() && !read_otherwise;
  options.protocols =
      options.listed ? recipe.protocols
                     : protocols_at(request.contexts.empty() ? recipe.contexts : request.contexts,
                                    read_otherwise ? request.stride : recipe.stride,
                                    read_otherwise ? request.carry_state : recipe.carry_state);
  options.batch = request.batch.value_or(recipe.batch);
  options.max_tokens = request.max_tokens;
  for (const std::string& text : request.overrides) {
    const Override change = parse_override(text);
    const bool asked =
        change.text == "evaluate.max_tokens" ||
        (change.text == "evaluate" && change.value.is_map() && change.value.contains("max_tokens"));
    if (asked && !options.max_tokens) options.max_tokens = recipe.max_tokens;
  }
  return options;
}

// EvaluateReport::mechanism.
std::string mechanisms_of(const ModelConfig& model) {
  std::vector<std::string> names;
  std::string text;
  for (const AttentionSection& section : attention_sections(model)) {
    std::map<int64_t, std::string> by_layer;
    for (const LayerChoice& choice : layer_choices(*section.node, section.layers)) {
      for (const int64_t layer : choice.layers)
        by_layer[layer] = choice.attention.find("name")->raw();
    }
    for (const auto& [layer, name] : by_layer) {
      if (std::count(names.begin(), names.end(), name) > 0) continue;
      names.push_back(name);
      text += concat(text.empty() ? "" : ", ", name);
    }
  }
  return text;
}

// Rank 0 finds the checkpoint, which may change while a run writes there.
LoadedModel load_for_all(const std::string& run_or_checkpoint, const EvaluateRequest& request,
                         Job& job) {
  std::optional<LoadedModel> loaded;
  if (job.leads()) loaded = load_model(run_or_checkpoint, request.overrides, request.device);
  const std::string path = job.of_leader(loaded ? loaded->path : "");
  if (!loaded) loaded = load_model(path, request.overrides, request.device);
  job.require_same_recipe(loaded->recipe);
  return std::move(*loaded);
}

// EvaluateReport::data. Warns of changed data.
std::string compare_data(const LoadedModel& loaded, const Task& task,
                         const std::vector<Split>& splits) {
  if (loaded.data_given) return "given";
  if (!loaded.data) return "not recorded";
  const std::string changed = changed_splits(*loaded.data, task, splits);
  if (changed.empty()) return "unchanged";
  log_warning(changed, " of the data", in_place(loaded.recipe.data),
              " changed since training: these scores cannot be compared with those of the run, and "
              "may be of text that it was trained on; restore the files, or name other data with "
              "--set data.path=DIR");
  return "changed";
}

}  // namespace

EvaluateReport evaluate(const std::string& run_or_checkpoint, const EvaluateRequest& request) {
  const std::unique_ptr<Communicator> single = make_single_communicator();
  Job job(request.ranks == nullptr ? *single : *request.ranks);
  require_usage(job.is_alone() || request.predictions.empty(),
                Cause{ErrorCode::conflict, "--predictions"},
                "predictions are written by one process, and these are ", job.size(),
                ": run 'linnet evaluate' by itself");
  const LoadedModel loaded = load_for_all(run_or_checkpoint, request, job);
  std::unique_ptr<Task> task;
  job.leader_first([&] { task = make_task(loaded.recipe, loaded.tokenizer); });
  if (loaded.data) require_same_classes(*loaded.data, *task);
  const ScoreOptions options = score_options(request, loaded.recipe.evaluate);
  if (!job.is_alone()) job.require_same("data fingerprint", task->fingerprint(options.split));
  std::vector<Split> splits = {options.split};
  if (request.baselines) splits.push_back(Split::train);
  EvaluateReport report;
  report.checkpoint = loaded.path;
  report.step = loaded.step;
  report.recipe = loaded.recipe.name;
  report.mechanism = mechanisms_of(loaded.recipe.model);
  report.attention = attention_text(*loaded.recipe.resolved.find("model"));
  report.positions = loaded.recipe.model.positions;
  report.parameters = loaded.model->parameters().count();
  require_packable(*loaded.model, request.weights);
  report.data = compare_data(loaded, *task, splits);
  report.partial = options.max_tokens.has_value();
  std::optional<PerTokenRequest> per_token;
  if (!request.per_token.empty()) {
    per_token = {request.per_token,
                 {{"checkpoint", loaded.path},
                  {"recipe", loaded.recipe.name},
                  {"step", std::to_string(loaded.step)}}};
  }
  if (!request.predictions.empty()) {
    std::string lines = "index\tprediction\n";
    for (const Prediction& each : task->predict(*loaded.model, options))
      lines += concat(each.row, '\t', each.text, '\n');
    write_file_atomically(request.predictions, lines);
  }
  if (request.predictions.empty() || task->is_labelled(options.split))
    report.scores = score(*task, *loaded.model, options, per_token ? &*per_token : nullptr, job);
  if (request.weights != WeightFormat::f32 && !report.scores.empty()) {
    pack_weights(*loaded.model, request.weights);  // rounds them: the packed copies are not needed
    report.weights = request.weights;
    report.packed_scores = score(*task, *loaded.model, options, nullptr, job);
  }
  if (request.baselines && job.leads()) report.baselines = task->baselines(options);
  for (const std::string& warning : task->take_warnings()) log_warning(warning);
  return report;
}

}  // namespace linnet
