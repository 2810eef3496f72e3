// Saving, finding and deleting the checkpoints of a run.
#include "recipes/engine/checkpoint_store.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "core/files.h"
#include "core/log.h"
#include "recipes/engine/best_repair.h"

namespace linnet {
namespace {

constexpr std::string_view kOld = "old-";  // in the name of a temporary that is being deleted
constexpr const char* kStep = "step-";
constexpr const char* kReplaced = "replaced-step-";
constexpr const char* kAbandoned = "abandoned-step-";
constexpr const char* kBest = "best.json";
constexpr uint64_t kMaxBest = 65536;
// How often a reader lists a run whose trainer deletes what was listed.
constexpr int kListings = 100;
// Room for the manifest, directory entries and rounding to blocks.
constexpr uint64_t kSlackBytes = uint64_t{1} << 20;

std::string numbered(const char* prefix, int64_t step) {
  const std::string digits = std::to_string(step);
  return concat(prefix, std::string(8 - std::min<size_t>(digits.size(), 8), '0'), digits);
}

// The step in a name such as "step-00000042"; empty when the name is another.
std::optional<int64_t> step_in(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  const bool whole = error == std::errc() && end == name.data() + name.size() && name.size() >= 8;
  return whole && step >= 0 ? std::optional(step) : std::nullopt;
}

std::vector<std::string> names_in(const std::string& folder) {
  return is_directory(folder) ? file_system().list(folder) : std::vector<std::string>();
}

// Why a checkpoint directory is not valid, or that it is.
std::optional<std::string> damage_of(const std::string& path, int64_t step) {
  try {
    const int64_t found = verify_checkpoint(path).step;
    if (found == step) return std::nullopt;
    return concat(path, " is the checkpoint of step ", found);
  } catch (const Error& error) {
    return error.what();
  }
}

// Runs clean-up whose failure does no harm: it becomes a warning.
template <typename Body>
void attempt(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    log_warning("old checkpoint data stay on the disk: ", error.what());
  }
}

}  // namespace

CheckpointStore::CheckpointStore(std::string run_directory, int keep, const std::string& owner)
    : run_directory_(std::move(run_directory)),
      folder_(join_path(run_directory_, "checkpoints")),
      keep_(keep),
      temporary_(owner.empty() ? "tmp-" : concat("tmp-", owner, "-")) {
  require_usage(keep >= 1, Cause{ErrorCode::out_of_range, "checkpoint.keep"},
                "checkpoint.keep must be at least 1, got ", keep);
}

std::string CheckpointStore::path_of(int64_t step) const {
  return join_path(folder_, numbered(kStep, step));
}

std::string CheckpointStore::temporary(const std::string& name) const {
  return join_path(folder_, temporary_ + name);
}

bool CheckpointStore::is_temporary(std::string_view name) const {
  if (!name.starts_with(temporary_)) return false;
  name.remove_prefix(temporary_.size());
  if (name.starts_with(kOld)) name.remove_prefix(kOld.size());
  return step_in(name, kStep) || step_in(name, kReplaced) || step_in(name, kAbandoned);
}

// So that a crash half way leaves no directory that looks like a checkpoint.
void CheckpointStore::remove_checkpoint(const std::string& name) {
  const std::string doomed = temporary(concat(kOld, name));
  remove_all(doomed);
  file_system().rename(join_path(folder_, name), doomed);
  remove_all(doomed);
}

std::vector<int64_t> CheckpointStore::steps() const {
  std::vector<int64_t> steps;
  for (const std::string& name : names_in(folder_)) {
    if (const auto step = step_in(name, kStep)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::string CheckpointStore::save(int64_t step, const std::map<std::string, std::string>& files,
                                  const JsonValue& metadata) {
  require(step >= 0, "a checkpoint's step cannot be negative: ", step);
  const std::string target = path_of(step);
  const std::string temporary = this->temporary(numbered(kStep, step));
  const std::string replaced = join_path(folder_, numbered(kReplaced, step));
  bool begun = false;
  try {
    if (!is_directory(folder_)) {
      create_directories(folder_);
      file_system().sync_directory(run_directory_);
    }
    clean_leftovers();
    uint64_t needed = kSlackBytes;
    for (const auto& [name, bytes] : files) needed += bytes.size();
    const uint64_t free = file_system().free_bytes(folder_);
    require(needed <= free, Cause{ErrorCode::system, "", folder_}, "the disk of ", folder_, " has ",
            free, " bytes free, ", needed, " are needed");
    begun = true;
    file_system().create_directory(temporary);
    write_checkpoint_files(temporary, step, files, metadata);
    if (exists(target)) file_system().rename(target, replaced);
    file_system().rename(temporary, target);
    file_system().sync_directory(folder_);
  } catch (const Error& error) {
    if (begun) attempt([&] { remove_all(temporary); });
    throw Error(error.cause(), concat("the checkpoint of step ", step, " was not saved: ",
                                      error.what(), "; earlier checkpoints are untouched"));
  }
  attempt([&] { remove_all(replaced); });
  attempt([&] { apply_retention(step); });
  return target;
}

void CheckpointStore::clean_leftovers() {
  for (const std::string& name : names_in(folder_)) {
    if (is_temporary(name)) remove_all(join_path(folder_, name));
    // A process died between the two renames of an exchange, or before deleting the older one.
    if (const auto step = step_in(name, kReplaced)) {
      if (exists(path_of(*step)) && !damage_of(path_of(*step), *step)) {
        remove_checkpoint(name);
      } else {
        if (exists(path_of(*step))) remove_checkpoint(numbered(kStep, *step));
        file_system().rename(join_path(folder_, name), path_of(*step));
      }
    }
  }
}

void CheckpointStore::apply_retention(int64_t saved_step) {
  std::set<int64_t> kept{saved_step, also_kept_};
  // Throws when best.json is damaged: then nothing is deleted.
  if (const auto best_one = best()) kept.insert(best_one->step);
  const std::vector<int64_t> all = steps();
  for (size_t i = all.size() - std::min(all.size(), static_cast<size_t>(keep_)); i < all.size();
       ++i) {
    kept.insert(all[i]);
  }
  for (const std::string& name : names_in(folder_)) {
    const auto step = step_in(name, kStep);
    const auto abandoned = step_in(name, kAbandoned);
    if ((step && !kept.contains(*step)) || (abandoned && *abandoned <= saved_step))
      remove_checkpoint(name);
  }
}

void CheckpointStore::evict() {
  attempt([this] {
    const std::vector<int64_t> all = steps();
    if (!all.empty()) apply_retention(all.back());
  });
}

void CheckpointStore::mark_best(int64_t step, const std::string& metric, double value) {
  require(is_checkpoint(path_of(step)), Cause{ErrorCode::not_found},
          "there is no checkpoint of step ", step, " to be named the best: ", path_of(step));
  const JsonValue json =
      JsonValue::object().set("step", step).set("metric", metric).set("value", value);
  write_file_atomically(join_path(folder_, kBest), json.dump() + "\n");
}

std::optional<BestCheckpoint> CheckpointStore::best() const {
  const std::string path = join_path(folder_, kBest);
  if (!exists(path)) return std::nullopt;
  try {
    const JsonValue json = parse_json(read_file(path, kMaxBest), path);
    BestCheckpoint best;
    best.step = json.at("step").integer();
    best.metric = json.at("metric").text();
    best.value = json.at("value").number();
    best.path = path_of(best.step);
    return best;
  } catch (const Error& error) {
    throw Error({ErrorCode::malformed, error.key(), path},
                concat(path, " is damaged: ", error.what()));
  }
}

void CheckpointStore::forget_best() {
  file_system().remove(join_path(folder_, kBest));
}

NewestCheckpoint CheckpointStore::newest_valid() const {
  NewestCheckpoint result;
  for (int listing = 1; !list_valid(result) && listing < kListings; ++listing) result = {};
  return result;
}

// False when a checkpoint went away between listing and reading.
bool CheckpointStore::list_valid(NewestCheckpoint& result) const {
  std::vector<std::pair<int64_t, std::string>> candidates;
  for (const std::string& name : names_in(folder_)) {
    for (const char* prefix : {kStep, kReplaced}) {
      if (const auto step = step_in(name, prefix)) candidates.emplace_back(*step, name);
    }
  }
  // Newest first; "step-" after "replaced-" in the alphabet, so the newer of one step comes first.
  std::sort(candidates.rbegin(), candidates.rend());
  bool all_there = true;
  for (const auto& [step, name] : candidates) {
    const std::string path = join_path(folder_, name);
    const auto damage = damage_of(path, step);
    if (!damage) {
      result.path = path;
      return true;
    }
    const bool there = exists(path);
    all_there = all_there && there;
    if (there) result.skipped.push_back({path, *damage});
  }
  return all_there;
}

void CheckpointStore::rewind_to(int64_t step) {
  // A run that is finished already saves nothing more, which would clean them.
  attempt([&] { clean_leftovers(); });
  const auto best_one = best();
  if (best_one && best_one->step > step) {
    log_warning("step ", best_one->step, ", the best so far, is forgotten: training goes on from ",
                step);
    forget_best();
  }
  for (const int64_t later : steps()) {
    if (later <= step) continue;
    const std::string name = numbered(kAbandoned, later);
    log_warning("the later checkpoint ", path_of(later), " is renamed to ", name);
    remove_all(join_path(folder_, name));
    file_system().rename(path_of(later), join_path(folder_, name));
  }
  if (is_directory(folder_)) file_system().sync_directory(folder_);
}

namespace {

// The one that best.json names; where it cannot, or that one is damaged, which then is in `damaged`
// after a warning, the best one by the evaluations. Empty when none was evaluated.
std::optional<std::string> valid_best(const CheckpointStore& store, std::string& damaged) {
  std::string reason;
  try {
    int64_t gone = -1;
    while (const auto best = store.best()) {
      const auto damage = damage_of(best->path, best->step);
      if (!damage) return best->path;
      // The trainer may have named another since, and deleted this one.
      if (!exists(best->path) && best->step != gone) {
        gone = best->step;
        continue;
      }
      reason = concat("the best checkpoint is skipped: ", *damage);
      damaged = best->path;
      break;
    }
  } catch (const Error& error) {
    log_warning(error.what());
  }
  const auto best = best_by_evaluations(store);
  if (!reason.empty()) {
    log_warning(reason, best ? concat("; taking ", best->path,
                                      " instead, the best of the others by their evaluations")
                             : "");
  } else if (best) {
    log_info(
        "no best.json names it, but by the evaluations of the checkpoints the best is that of "
        "step ",
        best->step);
  }
  return best ? std::optional(best->path) : std::nullopt;
}

// Where the newest checkpoint comes after updates that were skipped or ruined the weights, the one
// that its run kept from before them, after a warning.
std::optional<std::string> valid_sound(const CheckpointStore& store, const std::string& newest) {
  std::string path;
  try {
    const JsonValue metadata = read_manifest_of(newest).metadata;
    const JsonValue* sound = metadata.find("sound");
    if (sound == nullptr || !sound->at("doubt").boolean() || sound->at("guess").boolean())
      return {};
    const int64_t step = sound->at("step").integer();
    path = store.path_of(step);
    if (step < 0 || path == newest || damage_of(path, step)) return {};
  } catch (const Error&) {  // the trainer deleted the newest meanwhile: it is listed again
    return {};
  }
  log_warning("training went wrong before ", newest,
              " (updates were skipped, or a loss was that of ruined weights): taking ", path,
              ", the newest checkpoint known to be sound");
  return path;
}

}  // namespace

std::string find_checkpoint(const std::string& run_or_checkpoint) {
  if (is_checkpoint(run_or_checkpoint)) {
    verify_checkpoint(run_or_checkpoint);
    return run_or_checkpoint;
  }
  require_usage(exists(run_or_checkpoint), Cause{ErrorCode::not_found, "", run_or_checkpoint},
                "there is no ", run_or_checkpoint, "; name a run directory or a checkpoint");
  require_usage(is_directory(join_path(run_or_checkpoint, "checkpoints")),
                Cause{ErrorCode::not_found, "", run_or_checkpoint}, run_or_checkpoint,
                " is neither a run directory (it has no checkpoints/) nor a checkpoint (it has no "
                "manifest.json)");
  const CheckpointStore store(run_or_checkpoint);
  std::string damaged_best;
  if (const auto best = valid_best(store, damaged_best)) return *best;
  const NewestCheckpoint newest = store.newest_valid();
  for (const SkippedCheckpoint& skipped : newest.skipped) {
    if (skipped.path != damaged_best) log_warning("a checkpoint is skipped: ", skipped.reason);
  }
  require(newest.path.has_value(), Cause{ErrorCode::malformed, "", run_or_checkpoint},
          run_or_checkpoint, " has no valid checkpoint");
  return valid_sound(store, *newest.path).value_or(*newest.path);
}

Checkpoint load_found_checkpoint(const std::string& run_or_checkpoint) {
  for (int listing = 1;; ++listing) {
    const std::string path = find_checkpoint(run_or_checkpoint);
    try {
      return load_checkpoint(path);
    } catch (const Error&) {
      if (exists(path) || path == run_or_checkpoint || listing == kListings) throw;
    }
  }
}

}  // namespace linnet
