#include "core/comm/environment.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>

#include "core/comm/message_communicator.h"
#include "core/error.h"
#include "core/files.h"

namespace linnet {
namespace {

constexpr int kMaxRanks = 65536;
constexpr int kMaxLimitSeconds = 7 * 24 * 3600;

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

int number(const char* name, int minimum, int maximum) {
  const std::string text = variable(name);
  int value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  require_usage(failed == std::errc() && end == text.data() + text.size() && value >= minimum &&
                    value <= maximum,
                Cause{ErrorCode::out_of_range, name}, "the environment variable ", name,
                " must be a whole number from ", minimum, " to ", maximum, ", found '", text, "'");
  return value;
}

// Who tells a process its rank, and how many ranks or machines there are.
struct Starter {
  const char *rank, *size, *on_this_machine, *machines;
};
constexpr Starter kStarters[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", ""},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", ""},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "", "SLURM_STEP_NUM_NODES"}};

// Whether the starter says that all ranks are on this machine.
bool is_on_one_machine(const Starter& starter) {
  const std::string here = variable(starter.on_this_machine);
  return (!here.empty() && here == variable(starter.size)) || variable(starter.machines) == "1";
}

// Where ranks of one machine meet that are told nothing else: all are children of one starter, and
// no other process that this machine ever runs has its number and its start.
std::string folder_of_starter() {
  const std::string stat = read_file(concat("/proc/", ::getppid(), "/stat"));
  std::istringstream fields(stat.substr(stat.rfind(')') + 1));
  std::string start;
  for (int field = 3; field <= 22; ++field) fields >> start;  // proc(5): 22 is the start
  const std::string base = variable("TMPDIR");
  return join_path(
      base.starts_with('/') ? base : "/tmp",
      concat("linnet-job-", ::getppid(), "-", start, "-", variable("TORCHELASTIC_RESTART_COUNT")));
}

// The folder of "file:///FOLDER".
std::string folder_of_store() {
  const std::string store = variable(kStoreVariable);
  constexpr std::string_view kScheme = "file://";
  require_usage(store.starts_with(kScheme) && store.substr(kScheme.size()).starts_with('/'),
                Cause{ErrorCode::malformed, kStoreVariable}, "the environment variable ",
                kStoreVariable, " must be file:// and the absolute path of a folder, such as ",
                "file:///tmp/my-job, found '", store, "'");
  return store.substr(kScheme.size());
}

}  // namespace

std::unique_ptr<Communicator> communicator_from_environment() {
  for (const Starter& starter : kStarters) {
    const bool has_rank = !variable(starter.rank).empty();
    const bool has_size = !variable(starter.size).empty();
    // Slurm gives a batch script, which is no rank, SLURM_PROCID alone.
    const bool half = has_rank != has_size && &starter == kStarters;
    require_usage(!half, Cause{ErrorCode::missing_key, starter.rank},
                  "of the environment variables ", starter.rank, " and ", starter.size,
                  " one is set and the other is not; set both ", "or none");
    if (!has_rank || !has_size) continue;
    CommunicatorOptions options;
    options.size = number(starter.size, 1, kMaxRanks);
    options.rank = number(starter.rank, 0, options.size - 1);
    if (options.size == 1) break;
    const bool named = !variable(kStoreVariable).empty();
    require_usage(
        named || is_on_one_machine(starter), Cause{ErrorCode::missing_key, kStoreVariable},
        starter.size, " says that this is one of ", options.size, " processes, and nothing ",
        "says where they meet: set ", kStoreVariable, "=file:///FOLDER, a folder of this ",
        "job alone that all of them see, or start them with 'linnet launch'");
    if (!variable(kLimitVariable).empty()) {
      options.time_limit = std::chrono::seconds(number(kLimitVariable, 1, kMaxLimitSeconds));
    }
    options.interface = variable(kInterfaceVariable);
    return make_gloo_communicator(options,
                                  make_file_store(named ? folder_of_store() : folder_of_starter()));
  }
  return make_single_communicator();
}

}  // namespace linnet
