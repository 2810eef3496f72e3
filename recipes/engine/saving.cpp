#include "recipes/engine/saving.h"

#include <cmath>

#include "core/files.h"
#include "core/hash.h"
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
      data_(parts.job.leads() ? record_data(parts.recipe.data, parts.task) : DataRecord{}),
      origin_(origin) {}

void RunSaver::resume(const Checkpoint& checkpoint, const Progress& progress) {
  origin_ = origin_of(checkpoint);
  saved_step_ = progress.step;
  saved_seconds_ = progress.seconds;
  if (!parts_.job.leads()) return;
  warn_of_another_schedule(checkpoint, progress.step);
  repair_best(store_, parts_.recipe.checkpoint.best, FindDamage::yes);
  store_.rewind_to(progress.step);
  store_.keep_also(progress.sound.step);
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
  if (parts_.job.leads()) store_.evict();
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
  require_equal_state();
  const StateTensors optimizer =
      whole_optimizer_state(parts_.updater, parts_.model.parameters(), parts_.job);
  if (parts_.job.leads()) write(progress, optimizer, log);
  // Whoever started the ranks may end all of them once one has ended.
  parts_.job.wait_for_all();
  saved_step_ = progress.step;
  saved_seconds_ = progress.seconds;
}

void RunSaver::write(const Progress& progress, const StateTensors& optimizer, RunLog& log) {
  const CheckpointContents contents =
      pack_run(parts_.recipe, parts_.model.parameters(), optimizer, parts_.updater, progress,
               parts_.task.tokenizer().get(), parts_.task.sizes(), data_, origin_);
  log.sync();
  store_.keep_also(progress.sound.step);
  store_.save(progress.step, contents.files, contents.metadata);
}

void RunSaver::require_equal_state() const {
  if (parts_.job.is_alone()) return;
  Hash128 hash;
  const auto add = [&hash](const Tensor& tensor) {
    const Tensor values = tensor.to(Device{});
    hash.add({static_cast<const char*>(values.raw()), values.bytes()});
  };
  for (const auto& [name, tensor] : parts_.model.parameters().tensors()) add(tensor);
  if (parts_.updater.average) add(parts_.updater.average->average());
  const std::vector<std::string> hashes = parts_.job.ranks().all_gather_text(hash.hex());
  for (size_t rank = 1; rank < hashes.size(); ++rank) {
    require(hashes[rank] == hashes[0], "the weights of rank ", rank,
            " are not those of rank 0, so nothing is saved: the ranks began from other files, or "
            "their machines or builds compute differently; go on from the last checkpoint with "
            "equal ones");
  }
}

void RunSaver::save_again(Progress& progress, RunLog& log) {
  saved_step_ = -1;
  save(progress, log);
}

std::optional<BestCheckpoint> RunSaver::best() {
  Job& job = parts_.job;
  std::optional<BestCheckpoint> best;
  if (job.leads()) {
    repair_best(store_, parts_.recipe.checkpoint.best);
    best = store_.best();
  }
  if (job.is_alone()) return best;
  const int64_t step = job.ranks().sum(best ? best->step + 1 : int64_t{0}) - 1;
  if (step < 0) return std::nullopt;
  return BestCheckpoint{store_.path_of(step), step, "", 0};
}

void RunSaver::mark_if_best(Progress& progress, RunLog& log) {
  const std::string& metric = parts_.recipe.checkpoint.best;
  if (metric == "none" || progress.evaluated.step != progress.step) return;
  const bool accuracy = metric == "accuracy";
  const double value = accuracy ? progress.evaluated.accuracy : progress.evaluated.nll;
  if (!(accuracy ? std::isfinite(value) : parts_.task.is_sound(value))) return;
  Job& job = parts_.job;
  if (!job.any(job.leads() && is_better(value))) return;
  save(progress, log);
  if (job.leads()) store_.mark_best(progress.step, metric, value);
}

// Than the best one so far.
bool RunSaver::is_better(double value) {
  const std::string& metric = parts_.recipe.checkpoint.best;
  repair_best(store_, metric);
  const auto best = store_.best();
  if (!best || best->metric != metric) return true;
  return metric == "accuracy" ? value > best->value : value < best->value;
}

}  // namespace linnet
