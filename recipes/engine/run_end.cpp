#include "recipes/engine/run_end.h"

#include <algorithm>
#include <optional>

#include "core/config.h"
#include "core/files.h"

namespace linnet {
namespace {

constexpr uint64_t kTail = uint64_t{1} << 16;  // bytes of the log; its last lines say how it ended

std::string tail_of(const std::string& path) {
  File file(path, OpenMode::read);
  const uint64_t bytes = file.bytes(), kept = std::min(bytes, kTail);
  file.seek(bytes - kept);
  std::string text(kept, '\0');
  text.resize(file.read(text));
  return text;
}

// What a line says, "<time> <level> <text>" (core/log.cpp); nothing where it is about something
// else.
std::optional<RunEnd> end_by(std::string_view line) {
  const size_t level = line.find(' ');
  if (level == std::string_view::npos) return std::nullopt;
  line.remove_prefix(level + 1);
  const bool error = line.starts_with("error ");
  if (!error && !line.starts_with("info ")) return std::nullopt;
  line.remove_prefix(line.find(' '));
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  if (error) {
    if (line.starts_with(kDivergedLine)) return RunEnd::diverged;
    return line.find("out of memory") != std::string_view::npos ? RunEnd::out_of_memory
                                                                : RunEnd::failed;
  }
  if (line.starts_with(kDoneLine) || line.starts_with(kIdleLine)) return RunEnd::finished;
  const bool open = line.starts_with(kStoppedLine) || line.starts_with(kBegunLine) ||
                    line.starts_with(kContinuedLine);
  return open ? std::optional(RunEnd::unfinished) : std::nullopt;
}

bool reached_last_step(const ConfigNode& recipe, double steps) {
  const ConfigNode* train = recipe.is_map() ? recipe.find("train") : nullptr;
  const ConfigNode* last = train != nullptr && train->is_map() ? train->find("max_steps") : nullptr;
  return last != nullptr && !last->is_null() && steps >= read_double(*last, "train.max_steps");
}

}  // namespace

const char* name_of(RunEnd end) {
  switch (end) {
    case RunEnd::finished:
      return "finished";
    case RunEnd::unfinished:
      return "unfinished";
    case RunEnd::diverged:
      return "diverged";
    case RunEnd::out_of_memory:
      return "out of memory";
    case RunEnd::failed:
      return "failed";
  }
  return "";
}

RunEnd run_end(const std::string& run_directory, const ConfigNode& recipe, double steps) {
  const std::string path = join_path(run_directory, "log.txt");
  const std::string log = exists(path) ? tail_of(path) : "";
  for (size_t end = log.size(); end > 0;) {
    const size_t before = log.rfind('\n', end - 1);
    const size_t begin = before == std::string::npos ? 0 : before + 1;
    if (const auto found = end_by(std::string_view(log).substr(begin, end - begin))) return *found;
    end = before == std::string::npos ? 0 : before;
  }
  return reached_last_step(recipe, steps) ? RunEnd::finished : RunEnd::unfinished;
}

}  // namespace linnet
