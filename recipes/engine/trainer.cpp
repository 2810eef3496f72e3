// The loop: reads batches, makes updates, and calls what each update calls for.
#include "recipes/engine/trainer.h"

#include <chrono>

#include "core/files.h"
#include "core/free_memory.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "core/threads.h"
#include "core/yaml.h"
#include "data/loader.h"
#include "data/word_tokenizer.h"
#include "recipes/engine/environment.h"
#include "recipes/engine/plugin_record.h"
#include "recipes/engine/recipe_check.h"
#include "recipes/engine/recipe_place.h"
#include "recipes/engine/report.h"
#include "recipes/engine/run_directory.h"
#include "recipes/engine/run_end.h"
#include "recipes/engine/run_log.h"
#include "recipes/engine/run_sample.h"
#include "recipes/engine/run_summary.h"
#include "recipes/engine/saving.h"
#include "recipes/engine/scoring.h"
#include "recipes/engine/stopping.h"
#include "recipes/engine/train_step.h"

namespace linnet {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Rank 0 plans the run; the others get to know what it chose.
RunPlan plan_for_all(const Recipe& recipe, const TrainOptions& options, Job& job) {
  job.require_same_recipe(recipe);
  job.require_same("thread count", concat(thread_count()));
  RunPlan plan;
  if (job.leads()) plan = plan_run(recipe, options.out, options.resume, options.dry_run);
  plan.directory = job.of_leader(plan.directory);
  const std::string checkpoint = job.of_leader(plan.checkpoint.value_or(""));
  if (!checkpoint.empty()) plan.checkpoint = checkpoint;
  return plan;
}

// Runs ahead of the updates; its position is a function of the counters alone.
PrefetchingLoader make_loader(const Task& task, const TrainStep& step, const Progress& progress) {
  const std::vector<ExampleRange>& parts = step.micro_batches();
  const int64_t per_update = step.examples_per_update();
  const int64_t first = progress.examples;
  const auto make = [&task, parts, per_update, first](int64_t index) {
    const int64_t update = first + index / std::ssize(parts) * per_update;
    const ExampleRange& part = parts[static_cast<size_t>(index % std::ssize(parts))];
    return task.train_batch(update + part.first, part.count);
  };
  return PrefetchingLoader(make, 0);
}

class Run {
 public:
  Run(const Recipe& recipe, const TrainOptions& options)
      : recipe_(recipe),
        options_(options),
        single_(options.ranks == nullptr ? make_single_communicator() : nullptr),
        job_(options.ranks == nullptr ? *single_ : *options.ranks),
        plan_(plan_for_all(recipe, options, job_)) {
    if (plan_.checkpoint) {
      resumed_ = load_checkpoint(*plan_.checkpoint);
      require_plugins(*resumed_);
      keep_recorded_init(recipe_, *resumed_);
    }
    with_places(recipe_, [this] { build(); });
    for (const std::string& warning : task_->take_warnings()) log_warning(warning);
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  TrainOutcome execute();

 private:
  void build();
  TrainParts parts() { return {recipe_, *task_, *model_, updater_, job_}; }
  bool finished() const { return stopping_->finished(progress_); }
  bool evaluation_is_due() const { return stopping_->evaluation_is_due(progress_); }
  // The best checkpoint, where evaluate.best_on wants it scored and it is not.
  std::optional<BestCheckpoint> unscored_best();
  bool interrupted() {
    return job_.stop_signal() != 0 && (stopping_->can_be_interrupted(progress_) || unscored_best());
  }
  void make_parts();
  void read_data();
  void require_equal_data();
  TrainOutcome dry_run();
  void start_directory();
  void write_facts();
  void loop();
  bool train_and_save();
  void update(PrefetchingLoader& loader);
  void evaluate();
  void score_best();
  void write_scores(int64_t step, const std::vector<Score>& scores, JsonValue more);
  // Of this start and those before it.
  void update_wall_time() { progress_.wall_seconds = wall_before_ + seconds_since(start_); }

  const Clock::time_point start_ = Clock::now();
  double wall_before_ = 0;
  Recipe recipe_;
  TrainOptions options_;
  std::unique_ptr<Communicator> single_;
  Job job_;
  RunPlan plan_;
  std::optional<Checkpoint> resumed_;  // until the run has taken it over
  std::optional<GivenState> given_;    // of a new run
  std::vector<std::string> given_notes_;
  std::unique_ptr<Task> task_;
  std::unique_ptr<Transformer> model_;
  Updater updater_;
  std::optional<TrainStep> step_;
  std::optional<Stopping> stopping_;
  Progress progress_;
  // Of a run that is not dry.
  std::optional<RunSaver> saver_;
  std::optional<RunLog> log_;
  std::optional<Score> last_score_;
};

// All that a recipe can be refused for is found here: what would fail only after hours, too.
void Run::build() {
  // Before the data are read, which may take long.
  check_run(recipe_, resumed_.has_value());
  if (!resumed_ && recipe_.init) given_ = load_given_state(recipe_);
  make_parts();
  step_.emplace(recipe_, *task_, *model_, updater_, job_);
  check_run(recipe_, *task_, *model_);
  stopping_.emplace(recipe_, task_->examples_per_epoch(), step_->examples_per_update());
}

// Everything that the run reads, so that it is prepared once.
void Run::read_data() {
  task_->examples_per_epoch();
  for (const ScoreOptions& options : scored_by_run(recipe_.evaluate)) {
    for (const ScoringProtocol& protocol : options.protocols) task_->scoring_set(options, protocol);
  }
}

void Run::require_equal_data() {
  if (job_.is_alone()) return;
  std::string found = task_->fingerprint(Split::train);
  for (const ScoreOptions& options : scored_by_run(recipe_.evaluate)) {
    found += concat(' ', task_->fingerprint(options.split));
  }
  job_.require_same("data fingerprint", found);
}

// Task, model and updater, with what the run goes on from, or is given.
void Run::make_parts() {
  const bool all = given_ && given_->all;
  const Checkpoint* whole = resumed_ ? &*resumed_ : all ? &given_->checkpoint : nullptr;
  job_.leader_first([&] {
    task_ = make_task_of_run(recipe_, whole,
                             all ? kWeightsInstead : "start a new run with another --out");
    if (!job_.is_alone()) read_data();
  });
  require_equal_data();
  model_ = build_model(recipe_, task_->sizes(), options_.device, ModelUse::training);
  if (given_) {
    require_fitting(*given_, recipe_, task_->tokenizer().get(), model_->parameters());
    given_notes_ = take_weights(*given_, model_->parameters());
  }
  // An average begins with the weights.
  updater_ = make_updater(recipe_, model_->parameters(), job_);
  if (whole != nullptr) {
    unpack_run(*whole, model_->parameters(), updater_, progress_);
    wall_before_ = progress_.wall_seconds;
  }
  if (all) {  // they are of the other run's checkpoints
    progress_.sound = {};
    progress_.best_scored = -1;
  }
  // They are as large as the model, and what an update needs is compared with what is free.
  if (given_) {
    given_->checkpoint.files.clear();
    given_->pretrained.reset();
  }
  if (resumed_) {
    std::erase_if(resumed_->files, [](const auto& file) { return file.first != "recipe.yaml"; });
  }
}

void Run::start_directory() {
  if (job_.leads() && !plan_.lock) plan_.lock = begin_run(plan_.directory);
  saver_.emplace(parts(), plan_.directory, job_.leads() ? plan_.lock->id() : "",
                 given_ ? std::optional(given_->origin) : std::nullopt);
  if (resumed_) {
    saver_->resume(*resumed_, progress_);
    resumed_.reset();
  }
  saver_->require_equal_state();
  if (job_.leads()) write_facts();
  job_.wait_for_all();
  log_.emplace(recipe_.train, stopping_->limits(), options_.device, model_->parameters().count(),
               job_.leads() ? plan_.directory : "", plan_.checkpoint ? progress_.step : -1);
  if (!plan_.checkpoint) log_->hyperparameters(recipe_.resolved);
  // From here on the run does not need what it was given. One without updates saves at its end.
  if (given_ && !finished()) saver_->save(progress_, *log_);
  // The program may have ended between saving a best checkpoint and naming it.
  if (plan_.checkpoint || given_) saver_->mark_if_best(progress_, *log_);
}

// What the directory says of the run beside its checkpoints and metrics.
void Run::write_facts() {
  set_log_file(join_path(plan_.directory, "log.txt"));
  write_file_atomically(join_path(plan_.directory, "recipe.yaml"), to_yaml(recipe_.resolved));
  JsonValue environment = collect_environment(static_cast<uint64_t>(recipe_.seed));
  environment.set("device", name_of(options_.device))
      .set("processes", int64_t{job_.size()})
      .set("data", to_json(saver_->data()));
  if (saver_->origin()) environment.set("init", to_json(*saver_->origin()));
  write_file_atomically(join_path(plan_.directory, "environment.json"), environment.dump(2) + "\n");
  if (task_->tokenizer() != nullptr && task_->tokenizer()->kind() == "word") {
    save_word_vocabulary(*task_->tokenizer(), join_path(plan_.directory, "vocabulary.txt"));
  }
}

void Run::update(PrefetchingLoader& loader) {
  const UpdateResult result = step_->run(progress_, [&loader] { return loader.next().value(); });
  update_wall_time();
  saver_->judge_update(result, progress_);
  const std::string sound = result.skipped ? saver_->sound_checkpoint(progress_) : "";
  if (result.skipped) {
    log_warning(skipped_update(progress_, result, sound, recipe_.optim.lr));
  }
  log_->update(progress_, result);
  if (!stopping_->diverged(progress_)) return;
  log_->finish_line();
  throw divergence(progress_, result, sound, recipe_.optim.lr);
}

// A stop gives the evaluation up (Interrupted); the run makes up for it when it goes on.
void Run::evaluate() {
  log_->finish_line();
  const ScoreOptions options = score_options(recipe_.evaluate);
  std::vector<Score> scores;
  try {
    const WithAverage averaged(model_->parameters(), updater_);
    scores = score(*task_, *model_, options, nullptr, job_);
  } catch (const Interrupted&) {
    saver_->save(progress_, *log_);
    throw;
  } catch (...) {  // of one of several processes, which cannot save without the others
    if (job_.is_alone()) saver_->save(progress_, *log_);
    throw;
  }
  JsonValue more = JsonValue::object();
  if (const auto percent = stopping_->percent(progress_)) more.set("progress", *percent);
  write_scores(progress_.step, scores, std::move(more));
  last_score_ = scores.front();
  progress_.evaluated = {progress_.step, last_score_->nll(), last_score_->accuracy()};
  saver_->judge_evaluation(progress_);
  saver_->mark_if_best(progress_, *log_);
  release_free_memory();
}

void Run::write_scores(int64_t step, const std::vector<Score>& scores, JsonValue more) {
  update_wall_time();
  log_->scores(step, scores, more.set("wall_seconds", progress_.wall_seconds));
}

std::optional<BestCheckpoint> Run::unscored_best() {
  if (!recipe_.evaluate.best_on || !finished()) return std::nullopt;
  std::optional<BestCheckpoint> best = saver_->best();
  return best && best->step != progress_.best_scored ? best : std::nullopt;
}

// A stop gives it up as an evaluation. The checkpoint of the last step has to know of it.
void Run::score_best() {
  const std::optional<BestCheckpoint> best = unscored_best();
  if (!best) return;
  std::vector<Score> scores;
  {
    const WithCheckpoint with(model_->parameters(), load_checkpoint(best->path));
    scores = score(*task_, *model_, scored_by_run(recipe_.evaluate).back(), nullptr, job_);
  }
  write_scores(best->step, scores, JsonValue::object().set("best", true));
  progress_.best_scored = best->step;
  saver_->save_again(progress_, *log_);
  release_free_memory();
}

void Run::loop() {
  // An evaluation that a signal or a crash prevented. The checkpoint has to know.
  if (evaluation_is_due() && progress_.step > 0) {
    evaluate();
    saver_->save_again(progress_, *log_);
  }
  PrefetchingLoader loader = make_loader(*task_, *step_, progress_);
  while (!finished() && !interrupted()) {
    update(loader);
    if (evaluation_is_due()) evaluate();
    if (!saver_->is_due(progress_) && !finished()) continue;
    saver_->save(progress_, *log_);
    release_free_memory();
  }
  if (!interrupted() && evaluation_is_due()) evaluate();  // no update was made
  if (!interrupted()) score_best();
}

// All that a stop must not end before it is saved. Returns whether it was stopped.
bool Run::train_and_save() {
  const HoldStop hold;
  try {
    loop();
  } catch (const Interrupted&) {  // the run stands where its last update left it
  }
  log_->finish_line();
  const bool stopped = interrupted();
  saver_->save(progress_, *log_);
  return stopped;
}

TrainOutcome Run::dry_run() {
  DryRun found;
  if (finished()) {
    found.parameters = model_->parameters().count();
    log_info("dry run: no update, as ", stopping_->limits().names_of_reached(progress_),
             " asks for none");
  } else {
    PrefetchingLoader loader = make_loader(*task_, *step_, progress_);
    found = try_update(
        parts(), step_, [&loader] { return loader.next().value(); }, stopping_->limits(), progress_,
        plan_.checkpoint ? "the saved"
        : given_         ? "the given"
                         : "fresh");
  }
  const std::string checkpoint = plan_.checkpoint ? file_name(*plan_.checkpoint) : "";
  log_info("dry run: no run directory was touched; without --dry-run this would ",
           plan_.checkpoint ? concat("continue ", plan_.directory, " from its ", checkpoint)
                            : concat("start in ", plan_.directory));
  return {0, "", progress_, std::nullopt, found};
}

TrainOutcome Run::execute() {
  if (!options_.dry_run) start_directory();
  for (const std::string& line :
       describe_run(recipe_, *task_, *model_, *step_, stopping_->limits())) {
    log_info(line);
  }
  if (given_) {
    log_info("begins from ", given_->origin.text(), given_->which.empty() ? "" : ", ",
             given_->which);
    for (const std::string& note : given_notes_) log_info(note);
  }
  if (options_.dry_run) return dry_run();
  const bool was_finished = finished() && (plan_.checkpoint || (given_ && given_->all));
  if (was_finished) {
    log_info(plan_.directory,
             plan_.checkpoint ? " is finished: it reached step "
                              : " has nothing to train: what it begins from reached step ",
             progress_.step, " and ", stopping_->limits().names_of_reached(progress_),
             "; raise that to train further");
  } else if (plan_.checkpoint) {
    log_info(kContinuedLine, plan_.directory, " at step ", progress_.step);
  } else {
    log_info(kBegunLine, plan_.directory);
  }
  if (train_and_save()) {
    log_info(kStoppedLine, job_.stop_signal(), " at step ", progress_.step,
             "; run again with --resume auto to continue");
    return {kStopped, plan_.directory, progress_, last_score_, std::nullopt};
  }
  end_if_stopping();
  if (!job_.leads()) return {0, plan_.directory, progress_, last_score_, std::nullopt};
  const std::string unfinished =
      unfinished_schedule(recipe_, *updater_.schedule, progress_, stopping_->limits());
  if (!unfinished.empty() && !was_finished) log_warning(unfinished);
  write_sample(parts(), plan_.directory);
  log_->sync();
  write_report({plan_.directory}, join_path(plan_.directory, "report.html"));
  log_info(was_finished ? std::string(kIdleLine)
                        : concat(kDoneLine, progress_.step, ": reached ",
                                 stopping_->limits().names_of_reached(progress_)),
           "; report: ", join_path(plan_.directory, "report.html"));
  return {0, plan_.directory, progress_, last_score_, std::nullopt};
}

}  // namespace

TrainOutcome train(const Recipe& recipe, const TrainOptions& options) {
  require_usage(recipe.sweep.is_null(), Cause{ErrorCode::conflict, "sweep"},
                "a run trains one recipe, and this one has a sweep: take one of its points");
  const UseKernels kernels(recipe.train.backend, options.device);
  return Run(recipe, options).execute();
}

}  // namespace linnet
