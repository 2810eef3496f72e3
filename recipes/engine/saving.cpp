#include "recipes/engine/saving.h"

#include <cmath>

#include "core/files.h"
#include "core/log.h"
#include "core/yaml.h"
#include "recipes/engine/best_repair.h"
#include "recipes/engine/make_task.h"

namespace linnet {
namespace {

// Without validations while it trains, so many sound updates in a row end the doubt of a run.
constexpr int64_t kReassuringUpdates = 100;

}  // namespace

std::unique_ptr<Task> make_task_of_run(Recipe& recipe, const Checkpoint* checkpoint,
                                       const std::string& other_way) {
  const std::optional<DataRecord> record =
      checkpoint != nullptr ? data_record_of(*checkpoint) : std::nullopt;
  if (record) recipe.data = located(recipe.data, *record);
  std::unique_ptr<Task> task =
      make_task(recipe, checkpoint != nullptr ? tokenizer_of(*checkpoint) : nullptr);
  if (checkpoint != nullptr) require_same_data(recipe, *task, *checkpoint, other_way);
  return task;
}

RunSaver::RunSaver(const TrainParts& parts, const std::string& run_directory,
                   const std::string& run_id, const std::optional<Origin>& origin)
    : parts_(parts),
      store_(run_directory, static_cast<int>(parts.recipe.checkpoint.keep), run_id),
      data_(record_data(parts.recipe.data, parts.task)),
      origin_(origin) {}

void RunSaver::resume(const Checkpoint& checkpoint, const Progress& progress) {
  origin_ = origin_of(checkpoint);
  warn_of_another_schedule(checkpoint, progress.step);
  repair_best(store_, parts_.recipe.checkpoint.best, FindDamage::yes);
  store_.rewind_to(progress.step);
  store_.keep_also(progress.sound.step);
  saved_step_ = progress.step;
  saved_seconds_ = progress.seconds;
}

// A schedule without a length of its own ends with train.max_steps, which may have changed.
void RunSaver::warn_of_another_schedule(const Checkpoint& checkpoint, int64_t step) const {
  const Recipe before = parse_recipe(parse_yaml(checkpoint.files.at("recipe.yaml"), "recipe.yaml"));
  const double was = make_schedule(before.optim, before.train.max_steps.value_or(0)).lr(step);
  const double is = parts_.updater.schedule->lr(step);
  if (was == is) return;
  log_warning(
      "the schedule is as long as train.max_steps, which was changed: the learning rate "
      "goes on at ",
      is, " instead of ", was);
}

void RunSaver::judge_update(const UpdateResult& result, Progress& progress) {
  SoundCheckpoint& sound = progress.sound;
  if (result.skipped || !parts_.task.is_sound(result.loss)) {
    sound.finite_in_a_row = 0;
    // The loss of weights that never were sound says nothing new.
    if (!result.skipped && sound.step < 0) return;
    if (!sound.doubt && sound.step < 0) {
      sound.step = saved_step_;
      sound.guess = true;
    }
    sound.doubt = true;
    store_.keep_also(sound.step);
    return;
  }
  ++sound.finite_in_a_row;
  const bool validated = parts_.recipe.evaluate.every_steps > 0;
  if (!validated && sound.finite_in_a_row >= kReassuringUpdates) sound.doubt = false;
  const bool from_saved = saved_step_ >= 0 && saved_step_ == progress.step - 1;
  if (sound.doubt || !from_saved || sound.step == saved_step_) return;
  sound.step = saved_step_;
  sound.guess = false;
  store_.keep_also(sound.step);
  store_.evict();
}

void RunSaver::judge_evaluation(Progress& progress) const {
  SoundCheckpoint& sound = progress.sound;
  if (!parts_.task.is_sound(progress.evaluated.nll)) {
    sound.doubt = sound.doubt || sound.step >= 0;
  } else if (progress.skipped_in_a_row == 0) {
    sound.doubt = false;
  }
}

std::string RunSaver::sound_checkpoint(const Progress& progress) const {
  if (progress.sound.step < 0 || progress.sound.guess) return "";
  const std::string path = store_.path_of(progress.sound.step);
  return is_checkpoint(path) ? path : "";
}

bool RunSaver::is_due(const Progress& progress) const {
  const CheckpointConfig& config = parts_.recipe.checkpoint;
  if (config.every_steps > 0 && progress.step % config.every_steps == 0) return true;
  return config.every_minutes && progress.seconds - saved_seconds_ >= *config.every_minutes * 60;
}

void RunSaver::save(Progress& progress, RunLog& log) {
  if (saved_step_ == progress.step) return;
  // An average may be sound when the weights are not.
  const bool scored = progress.evaluated.step == progress.step && !parts_.updater.average;
  if (scored && parts_.task.is_sound(progress.evaluated.nll) && !progress.sound.doubt) {
    progress.sound.step = progress.step;
    progress.sound.guess = false;
  }
  const CheckpointContents contents =
      pack_run(parts_.recipe, parts_.model.parameters(), parts_.updater, progress,
               parts_.task.tokenizer().get(), parts_.task.sizes(), data_, origin_);
  log.sync();
  store_.keep_also(progress.sound.step);
  store_.save(progress.step, contents.files, contents.metadata);
  saved_step_ = progress.step;
  saved_seconds_ = progress.seconds;
}

void RunSaver::save_again(Progress& progress, RunLog& log) {
  saved_step_ = -1;
  save(progress, log);
}

std::optional<BestCheckpoint> RunSaver::best() {
  repair_best(store_, parts_.recipe.checkpoint.best);
  return store_.best();
}

void RunSaver::mark_if_best(Progress& progress, RunLog& log) {
  const std::string& metric = parts_.recipe.checkpoint.best;
  if (metric == "none" || progress.evaluated.step != progress.step) return;
  const bool accuracy = metric == "accuracy";
  const double value = accuracy ? progress.evaluated.accuracy : progress.evaluated.nll;
  if (!(accuracy ? std::isfinite(value) : parts_.task.is_sound(value))) return;
  repair_best(store_, metric);
  const auto best = store_.best();
  const bool comparable = best && best->metric == metric;
  if (comparable && !(accuracy ? value > best->value : value < best->value)) return;
  save(progress, log);
  store_.mark_best(progress.step, metric, value);
}

}  // namespace linnet
