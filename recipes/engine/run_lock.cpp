#include "recipes/engine/run_lock.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iomanip>
#include <random>
#include <thread>
#include <vector>

#include "core/file_lock.h"
#include "core/files.h"
#include "core/log.h"
#include "recipes/engine/environment.h"

namespace linnet {
namespace {

constexpr std::string_view kMark = "linnet-run ";
constexpr std::string_view kBegun = "process ";
constexpr size_t kIdDigits = 16;
constexpr int kLooks = 50;
constexpr uint64_t kMaxBytes = uint64_t{16} << 20;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

// The id in the first line that has a whole one; a write may have been cut short. "" for none.
std::string id_in(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    if (line.starts_with(kMark) && line.size() == kMark.size() + kIdDigits &&
        line.find_first_not_of("0123456789abcdef", kMark.size()) == std::string::npos) {
      return line.substr(kMark.size());
    }
  }
  return "";
}

std::string new_id() {
  std::random_device random;
  std::ostringstream text;
  text << std::hex << std::setfill('0') << std::setw(8) << random() << std::setw(8) << random();
  return text.str();
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

// The line of the trainer that has begun and not ended. "" when there is none.
std::string begun_in(const std::vector<std::string>& lines) {
  return !lines.empty() && lines.back().starts_with(kBegun) ? lines.back() : "";
}

}  // namespace

RunLock::RunLock(const std::string& run_directory)
    : run_directory_(run_directory),
      path_(join_path(run_directory, kRunLockFile)),
      descriptor_(file_system().open(path_, OpenMode::append)) {
  try {
    take();
    announce();
    end_.emplace([this] { append_end(); });
  } catch (...) {
    close();
    throw;
  }
}

RunLock::~RunLock() {
  end_.reset();
  try {
    append_end();
  } catch (const Error&) {  // the next trainer takes over from a process that is gone
  }
  close();
}

void RunLock::take() {
  std::string holder;
  // A trainer gives its name just after it has the lock, and up the lock just after its last line.
  for (int look = 0; holder.empty() && look < kLooks; ++look) {
    if (look > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (try_lock()) return;
    holder = begun_in(lines_of(read_file(path_, kMaxBytes)));
  }
  throw UsageError({ErrorCode::conflict, "--out", run_directory_},
                   concat("another trainer is writing to ", run_directory_, ": ",
                          holder.empty() ? "a process that has not given its name" : holder,
                          "; wait for its end, or choose another directory with --out"));
}

// False when another open file has the lock.
bool RunLock::try_lock() {
  const LockResult result = try_lock_file(descriptor_, path_);
  if (result != LockResult::unsupported) return result == LockResult::taken;
  log_warning("the file system of ", run_directory_,
              " has no locks: see to it that no other trainer writes there");
  return true;
}

void RunLock::announce() {
  const std::string text = read_file(path_, kMaxBytes);
  const std::vector<std::string> lines = lines_of(text);
  id_ = id_in(lines);
  marked_before_ = !id_.empty();
  const std::string before = begun_in(lines);
  if (!before.empty()) log_info("taking ", run_directory_, " over: ", before, " is gone");
  std::string added = text.empty() || text.ends_with('\n') ? "" : "\n";
  if (!marked_before_) {
    id_ = new_id();
    added += concat(kMark, id_, "\n");
  }
  append(concat(added, kBegun, ::getpid(), " on ", host_name(), " since ", utc_now(), "\n"));
}

void RunLock::append(std::string_view text) {
  while (!text.empty()) {
    const size_t count = file_system().write_some(descriptor_, text, path_);
    if (count == 0) throw_file_error("write (the system took no byte)", path_, EIO);
    text.remove_prefix(count);
  }
}

void RunLock::append_end() {
  append(concat("ended ", utc_now(), "\n"));
}

void RunLock::close() noexcept {
  try {
    file_system().close(descriptor_, path_);
  } catch (const Error&) {  // nothing that matters was in it
  }
}

namespace {

// The first lines of a directory's run.lock; empty when there is none.
std::optional<std::vector<std::string>> first_lines(const std::string& directory) {
  const std::string path = join_path(directory, kRunLockFile);
  const auto status = file_system().status(path);
  if (!status || status->directory) return std::nullopt;
  File file(path, OpenMode::read);
  std::string begin(4096, '\0');
  begin.resize(file.read(begin));
  return lines_of(begin);
}

}  // namespace

bool is_marked_as_run(const std::string& directory) {
  const auto lines = first_lines(directory);
  return lines && std::any_of(lines->begin(), lines->end(),
                              [](const std::string& line) { return line.starts_with(kMark); });
}

bool has_unfinished_mark(const std::string& directory) {
  const auto lines = first_lines(directory);
  return lines && std::all_of(lines->begin(), lines->end(),
                              [](const std::string& line) { return kMark.starts_with(line); });
}

}  // namespace linnet
