// linnet launch: one command in several processes that compute together.
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <memory>

#include "core/child_process.h"
#include "core/comm/environment.h"
#include "core/files.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "core/threads.h"
#include "tools/cli/commands.h"
#include "tools/cli/launch.h"

namespace linnet::cli {
namespace {

using Clock = std::chrono::steady_clock;

// What knows of ranks, as its first words. Others would do the same work several times over.
const std::vector<std::vector<std::string>>& commands_of_ranks() {
  static const std::vector<std::vector<std::string>> commands = {
      {"train"}, {"evaluate"}, {"bench", "train"}, {"bench", "allreduce"}};
  return commands;
}

void check_command(const std::vector<std::string>& command) {
  require_usage(!command.empty(), Cause{ErrorCode::missing_key, "COMMAND"},
                "the command to run is missing: it comes after --, as in 'linnet launch --procs 2 "
                "-- train recipe.yaml'");
  for (const std::string& word : command) {
    require_usage(word != "--procs" && !word.starts_with("--procs="),
                  Cause{ErrorCode::conflict, "--procs"},
                  "--procs behind -- would start a job in each process: leave it out there");
  }
  std::string names;
  for (const auto& words : commands_of_ranks()) {
    if (command.size() >= words.size() && std::equal(words.begin(), words.end(), command.begin())) {
      return;
    }
    std::string name;
    for (const std::string& word : words) name += (name.empty() ? "" : " ") + word;
    names += concat(names.empty() ? "'" : ", '", name, "'");
  }
  const bool two_words = command.front() == "bench" && command.size() > 1;
  throw UsageError(Cause{ErrorCode::unknown_name, "COMMAND"},
                   concat("'", command.front(), two_words ? " " + command[1] : "",
                          "' is none of the commands that run on several processes: ", names));
}

// The folder in which the ranks meet, for this job alone.
class JobFolder {
 public:
  JobFolder() : path_(make()), cleanup_([this] { remove_all(path_); }) {}
  ~JobFolder() { remove(); }
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;
  const std::string& path() const { return path_; }
  void remove() const {
    try {
      if (exists(path_)) remove_all(path_);
    } catch (const Error& error) {
      log_warning(error.what());
    }
  }

 private:
  // Mode 0700.
  static std::string make() {
    const char* base = std::getenv("TMPDIR");
    std::string pattern =
        join_path(base != nullptr && *base == '/' ? base : "/tmp", "linnet-job-XXXXXX");
    if (::mkdtemp(pattern.data()) == nullptr) throw_file_error("make the folder", pattern, errno);
    return pattern;
  }

  std::string path_;
  StopCleanup cleanup_;
};

// How long a rank takes to end after another one has noticed.
constexpr std::chrono::seconds kMoment{2};

class Launch {
 public:
  explicit Launch(const LaunchOptions& options) : options_(options) {}

  int run() {
    const HoldStop hold;  // the ranks end first
    for (int rank = 0; rank < options_.procs; ++rank) begin(rank);
    while (any_runs()) {
      wait();
      pass_signal_on();
      ended_.clear();
      for (size_t rank = 0; rank < ranks_.size(); ++rank) look_at(static_cast<int>(rank));
      judge_ended();
      end_in_time();
    }
    return stopped_ && exit_code_ == 0 ? kStopped : exit_code_;
  }

 private:
  void begin(int rank);
  bool any_runs() const {
    return std::any_of(ranks_.begin(), ranks_.end(),
                       [](const auto& rank) { return rank->running(); });
  }
  void wait() const;
  void pass_signal_on();
  void look_at(int rank);
  void judge_ended();
  void end_in_time();
  void signal_all(int signal) {
    for (const auto& rank : ranks_) rank->signal(signal);
  }

  const LaunchOptions& options_;
  JobFolder folder_;
  std::vector<std::unique_ptr<ChildProcess>> ranks_;
  // Rank and exit code of those that ended just now, and of those that failed before launch asked
  // them to stop.
  std::vector<std::pair<int, int>> ended_, failed_;
  Clock::time_point first_failed_at_;
  bool passed_on_ = false;  // a signal
  bool stopped_ = false;    // by that one, or by one that a rank received
  int exit_code_ = 0;       // of the first that failed
  Clock::time_point failed_at_ = Clock::time_point::max();
};

void Launch::begin(int rank) {
  const int threads = options_.threads_per_proc > 0 ? options_.threads_per_proc
                                                    : std::max(1, thread_count() / options_.procs);
  ChildSettings settings;
  settings.separate_errors = true;
  settings.parent_gone = SIGKILL;  // nobody would end one that stands still
  settings.variables = {concat("RANK=", rank),
                        concat("LOCAL_RANK=", rank),
                        concat("WORLD_SIZE=", options_.procs),
                        concat("LOCAL_WORLD_SIZE=", options_.procs),
                        concat("OMP_NUM_THREADS=", threads),
                        concat(kStoreVariable, "=file://", join_path(folder_.path(), "store")),
                        concat(kLimitVariable, "=", options_.time_limit_s)};
  ranks_.push_back(std::make_unique<ChildProcess>(options_.command, settings));
}

// Until a rank says something or ends, a moment at most: signals are seen then.
void Launch::wait() const {
  std::vector<pollfd> descriptors;
  for (const auto& rank : ranks_) {
    descriptors.push_back({rank->descriptor(), POLLIN, 0});
    descriptors.push_back({rank->error_descriptor(), POLLIN, 0});
  }
  ::poll(descriptors.data(), descriptors.size(), 50);
}

void Launch::pass_signal_on() {
  if (stop_signal() == 0 || passed_on_) return;
  passed_on_ = stopped_ = true;
  signal_all(stop_signal());
  folder_.remove();  // a second signal ends this process at once
}

void Launch::look_at(int rank) {
  ChildProcess& process = *ranks_[static_cast<size_t>(rank)];
  const bool ran = process.running();
  for (const std::string& line : process.read_lines()) {
    if (rank == 0) {
      std::cout << line << "\n" << std::flush;
    } else {
      log_info("[", rank, "] ", line);
    }
  }
  for (const std::string& line : process.read_error_lines()) log_info("[", rank, "] ", line);
  if (ran && !process.running()) ended_.emplace_back(rank, process.exit_code());
}

// One failure brings others with it: a rank that signals ended is named before one that says what
// is wrong, and that one before one that only failed, maybe since it lost another that is still
// ending. Ranks that were stopped have agreed on it.
void Launch::judge_ended() {
  const auto severity = [](const std::pair<int, int>& rank_and_code) {
    return rank_and_code.second > 128 ? 3 : rank_and_code.second == kFailed ? 1 : 2;
  };
  for (const auto& [rank, code] : ended_) {
    if (code == kStopped) stopped_ = true;
    if (code == 0 || code == kStopped) continue;
    if (failed_.empty()) first_failed_at_ = Clock::now();
    failed_.emplace_back(rank, code);
  }
  if (exit_code_ != 0 || failed_.empty()) return;
  const auto worst =
      std::max_element(failed_.begin(), failed_.end(),
                       [&](const auto& a, const auto& b) { return severity(a) < severity(b); });
  const bool may_follow = severity(*worst) == 1 && any_runs();
  if (may_follow && Clock::now() - first_failed_at_ < kMoment) return;
  const auto [rank, code] = *worst;
  exit_code_ = code;
  failed_at_ = Clock::now();
  log_error("rank ", rank, " of ", options_.procs,
            code > 128 ? concat(" was ended by signal ", code - 128)
                       : concat(" ended with exit code ", code),
            any_runs() ? "; the others are asked to stop" : "");
  signal_all(SIGTERM);
}

void Launch::end_in_time() {
  if (failed_at_ == Clock::time_point::max() ||
      Clock::now() - failed_at_ < std::chrono::seconds(options_.grace_s)) {
    return;
  }
  signal_all(SIGKILL);
}

}  // namespace

int launch(const LaunchOptions& options) {
  check_command(options.command);
  return Launch(options).run();
}

void add_launch(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* command = app.add_subcommand(
      "launch", "run a command in several processes of this machine that compute together");
  command->add_option("--procs", options->procs, "processes ('ranks')")
      ->required()
      ->check(between(1, kMaxProcesses));
  command
      ->add_option("--threads-per-proc", options->threads_per_proc,
                   "CPU threads of each (default: those of this machine, divided)")
      ->check(between(1, 1024));
  command
      ->add_option("--time-limit", options->time_limit_s,
                   "seconds that a rank waits for the others, when they connect and at each "
                   "operation")
      ->check(between(1, 604'800))
      ->capture_default_str();
  command
      ->add_option("--grace", options->grace_s,
                   "seconds that the others have to end after one has failed")
      ->check(between(0, 3600))
      ->capture_default_str();
  command->add_option(
      "COMMAND", options->command,
      "after --, the command of linnet with its arguments: train, evaluate, bench train or "
      "bench allreduce");
  command->footer(
      "Example: linnet launch --procs 2 -- train recipe.yaml\n"
      "Standard output is that of rank 0. On standard error each rank's lines begin with its\n"
      "number, [0] to [N-1]. Signals are passed on. When a rank fails, the others are ended, and\n"
      "its exit code is that of launch. Ranks find each other in a folder of their own and talk\n"
      "over the loopback address; nothing authenticates them beyond that. They see RANK,\n"
      "WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, OMP_NUM_THREADS, LINNET_STORE and\n"
      "LINNET_TIME_LIMIT.");
  command->callback([options, &chosen] { chosen = [options] { return launch(*options); }; });
}

}  // namespace linnet::cli
