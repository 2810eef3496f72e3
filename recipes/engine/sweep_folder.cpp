#include "recipes/engine/sweep_folder.h"

#include "core/file_lock.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/log.h"
#include "recipes/engine/recipe_name.h"
#include "recipes/engine/run_directory.h"

namespace linnet {
namespace {

constexpr const char* kMark = "linnet-sweep";
constexpr uint64_t kMaxRecord = uint64_t{4} << 20;

std::string made(const std::string& directory) {
  require_usage(!is_run(directory), Cause{ErrorCode::conflict, "--out", directory}, directory,
                " is a run, and a sweep makes one in a folder for each of its points; choose "
                "another directory with --out");
  create_directories(directory);
  return directory;
}

std::map<std::string, std::string> read_record(const std::string& path) {
  std::map<std::string, std::string> finished;
  if (!exists(path)) return finished;
  try {
    const JsonValue record = parse_json(read_file(path, kMaxRecord), path);
    for (const JsonMember& point : record.at(kMark).members()) {
      finished[point.key] = point.value.text();
    }
  } catch (const Error& error) {
    throw UsageError({ErrorCode::malformed, "--out", path},
                     concat(path, " is no record of a sweep (", error.what(),
                            "); move it away, or choose another directory with --out"));
  }
  return finished;
}

}  // namespace

SweepFolder::SweepFolder(const std::string& directory)
    : directory_(made(directory)),
      record_(join_path(directory, "sweep.json")),
      lock_(join_path(directory, "sweep.lock"), OpenMode::append) {
  const LockResult lock = try_lock_file(lock_.descriptor(), lock_.path());
  require_usage(lock != LockResult::held, Cause{ErrorCode::conflict, "--out", directory},
                "another sweep is running in ", directory,
                "; wait for its end, or choose another directory with --out");
  if (lock == LockResult::unsupported) {
    log_warning("the file system of ", directory,
                " has no locks: see to it that no other sweep runs there");
  }
  finished_ = read_record(record_);
}

bool SweepFolder::is_finished(const std::string& label, const std::string& recipe) const {
  const auto found = finished_.find(label);
  return found != finished_.end() && found->second == hash128_hex(recipe) &&
         is_run(join_path(directory_, folder_of_point(label)));
}

void SweepFolder::finish(const std::string& label, const std::string& recipe) {
  finished_[label] = hash128_hex(recipe);
  JsonValue points = JsonValue::object();
  for (const auto& [point, hash] : finished_) points.set(point, hash);
  write_file_atomically(record_, JsonValue::object().set(kMark, std::move(points)).dump(2) + "\n");
}

}  // namespace linnet
