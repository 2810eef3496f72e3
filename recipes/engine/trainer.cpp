#include "recipes/engine/trainer.h"

#include <chrono>
#include <cmath>

#include "core/device.h"
#include "core/files.h"
#include "core/log.h"
#include "core/yaml.h"
#include "data/loader.h"
#include "data/word_tokenizer.h"
#include "recipes/engine/checkpoint_store.h"
#include "recipes/engine/environment.h"
#include "recipes/engine/generator.h"
#include "recipes/engine/metrics.h"
#include "recipes/engine/plugin_record.h"
#include "recipes/engine/report.h"
#include "recipes/engine/run_directory.h"
#include "recipes/engine/run_summary.h"
#include "recipes/engine/signals.h"

namespace linnet {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr int kStopped = 3;

class Run {
 public:
  Run(const Recipe& recipe, const TrainOptions& options)
      : recipe_(recipe), options_(options), plan_(plan_run(recipe, options.out, options.resume)) {
    if (plan_.checkpoint) {
      resumed_ = load_checkpoint(*plan_.checkpoint);
      require_plugins(*resumed_);
    }
    make_data();
    model_ = build_model(recipe, task_->sizes(), options.device);
    updater_ = make_updater(recipe, model_->parameters());
    step_.emplace(recipe, *task_, *model_, updater_);
    limits_.emplace(recipe.train, task_->examples_per_epoch(), step_->examples_per_update());
    check();
    for (const std::string& warning : task_->take_warnings()) log_warning(warning);
  }
  // Whatever ended the run: the terminal's progress line is complete.
  ~Run() { end_progress(); }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  TrainOutcome execute();

 private:
  void make_data();
  void check() const;
  TrainOutcome dry_run();
  void start_directory();
  void warn_of_another_schedule(const Checkpoint& checkpoint) const;
  void loop();
  PrefetchingLoader make_loader() const;
  void update(PrefetchingLoader& loader);
  bool finished() const { return limits_->reached(progress_); }
  bool evaluation_is_due() const;
  // A signal asks for the end while there is still something to do.
  bool stopping() const { return stop_signal() != 0 && (!finished() || evaluation_is_due()); }
  bool checkpoint_is_due() const;
  ScoreOptions score_options() const;
  void log_step(const UpdateResult& result, double step_seconds);
  void evaluate();
  void mark_if_best();
  void save();
  GenerateOptions sample_options() const;
  void write_sample();

  Recipe recipe_;
  TrainOptions options_;
  RunPlan plan_;
  std::optional<Checkpoint> resumed_;  // until the run has taken it over
  std::unique_ptr<Task> task_;
  DataRecord data_;
  std::unique_ptr<Transformer> model_;
  Updater updater_;
  std::optional<TrainStep> step_;
  std::optional<StopLimits> limits_;
  Progress progress_;
  std::optional<CheckpointStore> store_;
  std::optional<MetricsLog> metrics_;
  ProgressLine progress_line_;
  std::optional<Score> last_score_;
  int64_t saved_step_ = -1;
  double saved_seconds_ = 0;
  double window_seconds_ = 0;
  int64_t window_tokens_ = 0;
};

// A run that goes on does so with its own tokenizer and the data that it was trained on, wherever
// it is called from.
void Run::make_data() {
  const std::optional<DataRecord> record = resumed_ ? data_record_of(*resumed_) : std::nullopt;
  if (record) recipe_.data = located(recipe_.data, *record);
  task_ = make_task(recipe_, resumed_ ? tokenizer_of(*resumed_) : nullptr);
  if (!record) return;
  std::vector<Split> splits = {Split::train};
  const EvaluateConfig& scoring = recipe_.evaluate;
  if (scoring.every_steps > 0 || scoring.at_end) splits.push_back(split_from_name(scoring.split));
  const std::string changed = changed_splits(*record, *task_, splits);
  require_usage(changed.empty(), Cause{ErrorCode::conflict, "data"}, changed, " of the data",
                in_place(recipe_.data), " changed since the run in ", plan_.directory,
                " was trained on it: restore the files, or start a new run with another --out");
}

// Everything that would otherwise fail only after hours of training. Reading the splits here also
// keeps them from being read by two threads.
void Run::check() const {
  const bool classifier = task_->tokenizer() == nullptr;
  require_usage(recipe_.checkpoint.best != "accuracy" || classifier,
                Cause{ErrorCode::conflict, "checkpoint.best"},
                "checkpoint.best 'accuracy' is for classifiers; a language model has 'nll'");
  if (recipe_.evaluate.every_steps > 0 || recipe_.evaluate.at_end) {
    task_->check(*model_, score_options());
  }
  if (!classifier && recipe_.generate.tokens > 0) {
    sample_options();
    try {
      encode_prompt(*task_->tokenizer(), recipe_.generate.prompt);
    } catch (const Error& error) {
      throw UsageError(concat("generate.prompt: ", error.what()));
    }
  }
}

void Run::start_directory() {
  create_directories(plan_.directory);
  store_.emplace(plan_.directory, static_cast<int>(recipe_.checkpoint.keep));
  data_ = record_data(recipe_.data, *task_);
  if (resumed_) {
    unpack_run(*resumed_, model_->parameters(), updater_, progress_);
    warn_of_another_schedule(*resumed_);
    resumed_.reset();
    store_->rewind_to(progress_.step);
    saved_step_ = progress_.step;
    saved_seconds_ = progress_.seconds;
  }
  set_log_file(join_path(plan_.directory, "log.txt"));
  write_file_atomically(join_path(plan_.directory, "recipe.yaml"), to_yaml(recipe_.resolved));
  write_file_atomically(join_path(plan_.directory, "environment.json"),
                        collect_environment(static_cast<uint64_t>(recipe_.seed)).dump(2) + "\n");
  if (task_->tokenizer() != nullptr && task_->tokenizer()->kind() == "word") {
    save_word_vocabulary(*task_->tokenizer(), join_path(plan_.directory, "vocabulary.txt"));
  }
  metrics_.emplace(plan_.directory, plan_.checkpoint ? progress_.step : -1);
  // The program may have ended between saving a best checkpoint and naming it.
  if (plan_.checkpoint) mark_if_best();
}

// A schedule without a length of its own ends with train.max_steps, which may have changed.
void Run::warn_of_another_schedule(const Checkpoint& checkpoint) const {
  const Recipe before = parse_recipe(parse_yaml(checkpoint.files.at("recipe.yaml"), "recipe.yaml"));
  const double was =
      make_schedule(before.optim, before.train.max_steps.value_or(0)).lr(progress_.step);
  const double is = updater_.schedule->lr(progress_.step);
  if (was == is) return;
  log_warning(
      "the schedule is as long as train.max_steps, which was changed: the learning rate "
      "goes on at ",
      is, " instead of ", was);
}

void Run::log_step(const UpdateResult& result, double step_seconds) {
  window_seconds_ += step_seconds;
  window_tokens_ += result.tokens;
  if (result.skipped) {
    log_warning("step ", progress_.step, ": update skipped, the gradient of ",
                result.non_finite_parameter.empty() ? "the loss" : result.non_finite_parameter,
                " is not finite");
  }
  if (progress_.step % recipe_.train.log_every_steps != 0 && !finished()) return;
  TrainMetrics metrics;
  metrics.step = progress_.step;
  metrics.tokens = progress_.tokens;
  metrics.loss = result.loss;
  metrics.lr = result.lr;
  metrics.grad_norm = result.gradient_norm;
  metrics.tokens_per_s = static_cast<double>(window_tokens_) / std::max(window_seconds_, 1e-9);
  metrics.more.set("seconds", progress_.seconds)
      .set("memory_bytes", static_cast<int64_t>(peak_allocated_bytes(options_.device)))
      .set("skipped", progress_.skipped);
  progress_line_.show(format_progress(metrics, limits_->last_step(),
                                      limits_->seconds_left(progress_),
                                      peak_resident_memory_bytes()));
  metrics_->write(metrics);
  window_seconds_ = 0;
  window_tokens_ = 0;
}

ScoreOptions Run::score_options() const {
  const EvaluateConfig& config = recipe_.evaluate;
  ScoreOptions options;
  options.split = split_from_name(config.split);
  options.contexts = config.contexts;
  options.stride = config.stride;
  options.carry_state = config.carry_state;
  options.batch = config.batch;
  options.max_tokens = config.max_tokens;
  return options;
}

bool Run::evaluation_is_due() const {
  const EvaluateConfig& config = recipe_.evaluate;
  if (progress_.evaluated.step == progress_.step) return false;
  const bool scheduled =
      config.every_steps > 0 && progress_.step > 0 && progress_.step % config.every_steps == 0;
  return scheduled || (config.at_end && finished());
}

// A stop signal gives the evaluation up; the run makes up for it when it goes on.
void Run::evaluate() {
  progress_line_.finish();  // the step's own line comes before what is said of it
  ScoreOptions options = score_options();
  options.interrupted = [this] { return stopping(); };
  std::vector<Score> scores;
  try {
    const WithAverage averaged(model_->parameters(), updater_);
    scores = task_->score(*model_, options);
  } catch (...) {
    save();
    throw;
  }
  if (scores.empty()) return;
  for (const Score& score : scores) {
    metrics_->write(score.metrics(progress_.step));
    log_info("step ", progress_.step, ": ", score.text());
  }
  last_score_ = scores.front();
  progress_.evaluated = {progress_.step, last_score_->nll(), last_score_->accuracy()};
  mark_if_best();
}

// Saves the step that was just evaluated and names it the best one if it is.
void Run::mark_if_best() {
  const std::string& metric = recipe_.checkpoint.best;
  if (metric == "none" || progress_.evaluated.step != progress_.step) return;
  const bool accuracy = metric == "accuracy";
  const double value = accuracy ? progress_.evaluated.accuracy : progress_.evaluated.nll;
  if (!std::isfinite(value)) return;
  const auto best = store_->best();
  const bool comparable = best && best->metric == metric;
  if (comparable && !(accuracy ? value > best->value : value < best->value)) return;
  save();
  store_->mark_best(progress_.step, metric, value);
}

bool Run::checkpoint_is_due() const {
  const CheckpointConfig& config = recipe_.checkpoint;
  if (config.every_steps > 0 && progress_.step % config.every_steps == 0) return true;
  return config.every_minutes && progress_.seconds - saved_seconds_ >= *config.every_minutes * 60;
}

void Run::save() {
  if (saved_step_ == progress_.step) return;
  const CheckpointContents contents = pack_run(recipe_, model_->parameters(), updater_, progress_,
                                               task_->tokenizer().get(), task_->sizes(), data_);
  metrics_->sync();
  store_->save(progress_.step, contents.files, contents.metadata);
  saved_step_ = progress_.step;
  saved_seconds_ = progress_.seconds;
}

GenerateOptions Run::sample_options() const {
  const SampleConfig& config = recipe_.generate;
  GenerateOptions options;
  options.tokens = config.tokens;
  options.sampling = {config.temperature, config.top_k, config.top_p};
  options.sampling.validate();
  options.seed = static_cast<uint64_t>(config.seed.value_or(recipe_.seed));
  return options;
}

// The sample of the final weights, for the report. Only language models write one.
void Run::write_sample() {
  const SampleConfig& config = recipe_.generate;
  if (task_->tokenizer() == nullptr || config.tokens == 0) return;
  const Tokenizer& tokenizer = *task_->tokenizer();
  const DecoderLm& model = as_decoder(*model_);
  try {
    require_decode_state(model, "a sample");
  } catch (const UsageError& reason) {
    return log_warning(reason.what(), "; none is written");
  }
  const std::vector<int32_t> prompt = encode_prompt(tokenizer, config.prompt);
  GenerateOptions options = sample_options();
  if (const int64_t limit = longest_continuation(model, prompt.size()); limit < options.tokens) {
    log_warning("the sample is ", std::max<int64_t>(limit, 0), " tokens instead of ",
                options.tokens, ": the model handles ", model.length_limit(), " positions");
    if (limit <= 0) return;
    options.tokens = limit;
  }
  const WithAverage averaged(model_->parameters(), updater_);
  const Generated sample = generate(model, prompt, options);
  write_file_atomically(join_path(plan_.directory, "sample.txt"),
                        config.prompt + continuation(tokenizer, prompt, sample.tokens));
}

// Runs ahead of the updates; its position is a function of progress alone.
PrefetchingLoader Run::make_loader() const {
  const std::vector<int64_t>& sizes = step_->micro_batches();
  const int64_t per_update = step_->examples_per_update();
  const int64_t first = progress_.examples;
  const auto make = [this, sizes, per_update, first](int64_t index) {
    const int64_t parts = static_cast<int64_t>(sizes.size());
    const auto part = static_cast<size_t>(index % parts);
    int64_t begin = first + index / parts * per_update;
    for (size_t i = 0; i < part; ++i) begin += sizes[i];
    return task_->train_batch(begin, sizes[part]);
  };
  return PrefetchingLoader(make, 0);
}

void Run::update(PrefetchingLoader& loader) {
  const auto start = Clock::now();
  const UpdateResult result = step_->run(progress_, [&loader] { return loader.next().value(); });
  const double step_seconds = seconds_since(start);
  progress_.seconds += step_seconds;
  log_step(result, step_seconds);
  if (progress_.skipped_in_a_row < recipe_.train.max_nonfinite_steps) return;
  progress_line_.finish();
  const std::vector<int64_t> saved = store_->steps();
  throw Error(concat("training diverged: ", progress_.skipped_in_a_row,
                     " updates in a row had a gradient that is not finite (the last in ",
                     result.non_finite_parameter.empty() ? "the loss" : result.non_finite_parameter,
                     "); ",
                     saved.empty() ? "nothing was saved before"
                                   : concat("the checkpoint of step ", saved.back(), " is kept"),
                     "; lower optim.lr, or lengthen the warm-up, or clip gradients"));
}

void Run::loop() {
  // An evaluation that a signal or a crash prevented.
  if (evaluation_is_due() && progress_.step > 0) {
    evaluate();
    if (progress_.evaluated.step == progress_.step) {
      saved_step_ = -1;  // the checkpoint has to know
      save();
    }
  }
  PrefetchingLoader loader = make_loader();
  while (!finished() && !stopping()) {
    update(loader);
    if (evaluation_is_due()) evaluate();
    if (checkpoint_is_due() || finished()) save();
  }
}

// One update on fresh weights: what a mistake in the recipe, or too little memory, would stop.
TrainOutcome Run::dry_run() {
  if (finished()) {
    log_info("dry run: no update, as ", limits_->names_of_reached(progress_), " asks for none");
  } else {
    PrefetchingLoader loader = make_loader();
    const auto start = Clock::now();
    const UpdateResult result = step_->run(progress_, [&loader] { return loader.next().value(); });
    log_info("dry run: one update of fresh weights took ",
             std::round(100 * seconds_since(start)) / 100, " s: loss ", result.loss,
             ", gradient norm ", result.gradient_norm,
             result.skipped ? concat(", not finite in ", result.non_finite_parameter) : "");
  }
  const std::string checkpoint = plan_.checkpoint ? file_name(*plan_.checkpoint) : "";
  log_info("dry run: no run directory was touched; without --dry-run this would ",
           plan_.checkpoint ? concat("continue ", plan_.directory, " from its ", checkpoint)
                            : concat("start in ", plan_.directory));
  return {0, "", progress_, std::nullopt};
}

TrainOutcome Run::execute() {
  if (!options_.dry_run) start_directory();
  for (const std::string& line : describe_run(recipe_, *task_, *model_, *step_, *limits_)) {
    log_info(line);
  }
  if (recipe_.sweep.is_map()) {
    log_info("the recipe's sweep is left out: this run is the recipe itself with its overrides");
  }
  if (options_.dry_run) return dry_run();
  const bool was_finished = plan_.checkpoint && finished();
  if (was_finished) {
    log_info(plan_.directory, " is finished: it reached step ", progress_.step, " and ",
             limits_->names_of_reached(progress_), "; raise that to train further");
  } else if (plan_.checkpoint) {
    log_info("continuing ", plan_.directory, " at step ", progress_.step);
  } else {
    log_info("run directory: ", plan_.directory);
  }
  loop();
  progress_line_.finish();
  if (stopping()) {
    save();
    log_info("stopped by signal ", stop_signal(), " at step ", progress_.step,
             "; run again with --resume auto to continue");
    return {kStopped, plan_.directory, progress_, last_score_};
  }
  if (evaluation_is_due()) evaluate();  // no update was made
  save();
  write_sample();
  metrics_->sync();
  write_report({plan_.directory}, join_path(plan_.directory, "report.html"));
  log_info(was_finished ? "nothing was trained"
                        : concat("done at step ", progress_.step, ": reached ",
                                 limits_->names_of_reached(progress_)),
           "; report: ", join_path(plan_.directory, "report.html"));
  return {0, plan_.directory, progress_, last_score_};
}

}  // namespace

TrainOutcome train(const Recipe& recipe, const TrainOptions& options) {
  const UseKernels kernels(recipe.train.backend, options.device);
  return Run(recipe, options).execute();
}

}  // namespace linnet
