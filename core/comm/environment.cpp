#include "core/comm/environment.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>

#include "core/comm/cuda/nccl.h"
#include "core/comm/message_communicator.h"
#include "core/comm/tcp_store.h"
#include "core/cuda/backend.h"
#include "core/error.h"
#include "core/files.h"
#include "core/log.h"

namespace linnet {
namespace {

constexpr int kMaxRanks = 65536;
constexpr int kMaxLimitSeconds = 7 * 24 * 3600;
constexpr int kMaxPort = 65535;
constexpr int kPorts = 16;  // from MASTER_PORT on
constexpr const char* kLoopback = "127.0.0.1";

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

// Who tells a process its rank, how many ranks or machines there are, and in which job.
struct Starter {
  const char *rank, *size, *local_rank, *on_this_machine, *machines;
  const char *job, *step;
};
constexpr Starter kStarters[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "", "TORCHELASTIC_RUN_ID", ""},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "", "PMIX_NAMESPACE", ""},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", "SLURM_STEP_NUM_NODES",
     "SLURM_JOB_ID", "SLURM_STEP_ID"}};

// The one that started this process; nullptr without one.
const Starter* find_starter() {
  for (const Starter& starter : kStarters) {
    const bool has_rank = !variable(starter.rank).empty();
    const bool has_size = !variable(starter.size).empty();
    // Slurm gives a batch script, which is no rank, SLURM_PROCID alone.
    const bool half = has_rank != has_size && &starter == kStarters;
    require_usage(!half, Cause{ErrorCode::missing_key, starter.rank},
                  "of the environment variables ", starter.rank, " and ", starter.size,
                  " one is set and the other is not; set both ", "or none");
    if (has_rank && has_size) return &starter;
  }
  return nullptr;
}

enum class Machines { one, several, unknown };

Machines machines_of(const Starter& starter) {
  const std::string here = variable(starter.on_this_machine);
  const std::string machines = variable(starter.machines);
  if (here.empty() && machines.empty()) return Machines::unknown;
  const bool one = here.empty() ? machines == "1" : here == variable(starter.size);
  return one ? Machines::one : Machines::several;
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

// Opens the store of a job and says how this rank is reached.
class Meeting {
 public:
  Meeting(const Starter& starter, CommunicatorOptions& options)
      : starter_(starter), options_(options), machines_(machines_of(starter)) {}

  std::unique_ptr<Store> open() {
    const std::string store = variable(kStoreVariable);
    if (!store.empty()) return open_named(store);
    if (!variable("MASTER_ADDR").empty()) {
      // Both ends know where torchrun's agent listens itself.
      const bool agent = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
      const int port = number("MASTER_PORT", 1, kMaxPort - kPorts) + (agent ? 1 : 0);
      return open_tcp(variable("MASTER_ADDR"), port, kPorts);
    }
    require_usage(
        machines_ == Machines::one, Cause{ErrorCode::missing_key, kStoreVariable}, starter_.size,
        " says that this is one of ", options_.size, " processes, and nothing ",
        "says where they meet: set MASTER_ADDR and MASTER_PORT to an address and a free port of ",
        "rank 0's machine, or ", kStoreVariable, "=file:///FOLDER, a folder of this job alone ",
        "that all of them see, or start them with 'linnet launch'");
    return make_file_store(folder_of_starter());
  }

 private:
  std::unique_ptr<Store> open_named(const std::string& store) {
    constexpr std::string_view kFile = "file://", kTcp = "tcp://";
    const std::string place = store.substr(std::min(store.size(), store.find("//") + 2));
    if (store.starts_with(kFile) && place.starts_with('/')) {
      require_usage(machines_ != Machines::several || !options_.interface.empty(),
                    Cause{ErrorCode::missing_key, kInterfaceVariable}, "ranks of several machines ",
                    "that meet in a folder must be told on which network interface they listen: ",
                    "set ", kInterfaceVariable, ", such as eth0 (see 'ip address')");
      return make_file_store(place);
    }
    const size_t colon = place.rfind(':');
    int port = 0;
    if (store.starts_with(kTcp) && colon != std::string::npos && colon > 0) {
      std::from_chars(place.data() + colon + 1, place.data() + place.size(), port);
    }
    const bool plain =
        port > 0 && port <= kMaxPort && place.substr(colon + 1) == std::to_string(port);
    require_usage(plain, Cause{ErrorCode::malformed, kStoreVariable}, "the environment variable ",
                  kStoreVariable, " must be file:// and the absolute path of a folder, such as ",
                  "file:///tmp/my-job, or tcp://HOST:PORT, found '", store, "'");
    return open_tcp(place.substr(0, colon), port, 1);
  }

  std::unique_ptr<Store> open_tcp(const std::string& host, int port, int ports) {
    TcpStoreOptions store;
    store.rank = options_.rank;
    store.host = machines_ == Machines::one ? kLoopback : host;
    store.port = port;
    store.ports = ports;
    store.token = variable(kTokenVariable);
    if (store.token.empty()) {
      store.token = concat(variable(starter_.job), ".", variable(starter_.step));
    }
    TcpStore made = make_tcp_store(store, std::chrono::steady_clock::now() + options_.time_limit);
    // How this rank and rank 0 reach each other, the others reach this rank.
    options_.address = made.address;
    return std::move(made.store);
  }

  const Starter& starter_;
  CommunicatorOptions& options_;
  Machines machines_;
};

// Whether all ranks can use NCCL, each with a GPU of its own. They decide it together: else some
// would wait for others that use something else.
[[maybe_unused]] bool all_have_nccl(Communicator& ranks, Device device) {
  const bool on_gpu = device.kind == DeviceKind::cuda;
  if (ranks.sum(int64_t{on_gpu ? 1 : 0}) == 0) return false;
  char host[256] = {};
  ::gethostname(host, sizeof(host) - 1);
  const std::vector<std::string> problems =
      ranks.all_gather_text(on_gpu ? cuda::nccl_problem() : std::string("it computes on the CPU"));
  const std::vector<std::string> gpus =
      ranks.all_gather_text(concat(host, " ", variable("CUDA_VISIBLE_DEVICES"), " ", device.index));
  std::string problem;
  for (size_t rank = 0; rank < gpus.size() && problem.empty(); ++rank) {
    const auto here = gpus.begin() + static_cast<std::ptrdiff_t>(rank);
    const auto same = std::find(gpus.begin(), here, *here);
    if (!problems[rank].empty()) {
      problem = concat("rank ", rank, ": ", problems[rank]);
    } else if (same != here) {
      problem = concat("ranks ", same - gpus.begin(), " and ", rank, " share a GPU");
    }
  }
  if (problem.empty()) return true;
  if (ranks.rank() == 0) log_warning("sums of GPUs pass through host memory: ", problem);
  return false;
}

}  // namespace

std::unique_ptr<Communicator> communicator_from_environment(Device device) {
  const Starter* starter = find_starter();
  if (starter == nullptr) return make_single_communicator();
  CommunicatorOptions options;
  options.size = number(starter->size, 1, kMaxRanks);
  options.rank = number(starter->rank, 0, options.size - 1);
  if (options.size == 1) return make_single_communicator();
  if (!variable(kLimitVariable).empty()) {
    options.time_limit = std::chrono::seconds(number(kLimitVariable, 1, kMaxLimitSeconds));
  }
  options.interface = variable(kInterfaceVariable);
  std::unique_ptr<Store> store = Meeting(*starter, options).open();
  auto ranks = make_gloo_communicator(options, std::move(store));
  if constexpr (kCuda) {
    if (all_have_nccl(*ranks, device)) {
      return cuda::make_nccl_communicator(std::move(ranks), device);
    }
  }
  return ranks;
}

int local_rank_from_environment() {
  const Starter* starter = find_starter();
  if (starter == nullptr || variable(starter->local_rank).empty()) return 0;
  return number(starter->local_rank, 0, kMaxRanks - 1);
}

}  // namespace linnet
