#include "recipes/engine/sweep_run.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <iomanip>
#include <memory>
#include <set>
#include <sstream>

#include "core/child_process.h"
#include "core/files.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "core/progress.h"
#include "core/suggest.h"
#include "core/threads.h"
#include "core/yaml.h"
#include "recipes/engine/recipe_name.h"
#include "recipes/engine/row_claims.h"
#include "recipes/engine/run_directory.h"
#include "recipes/engine/sweep_folder.h"
#include "recipes/engine/trainer.h"

namespace linnet {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr int kSignalled = 128;  // what ChildProcess::exit_code() adds to a signal

// How a signal ended a process, which could not tell.
std::string text_of_signal(int signal) {
  return concat("ended by signal ", signal,
                signal == SIGKILL ? " (killed; perhaps memory ran out)" : "");
}

struct Point {
  std::string label;
  Recipe recipe;
};

// The points of those labels; of all where there are none.
std::vector<RecipePoint> chosen(std::vector<RecipePoint> all, const SweepOptions& options) {
  require_usage(!all.front().label.empty(), Cause{ErrorCode::conflict, "sweep", options.recipe},
                options.recipe,
                " has no sweep, or key=value gives all that it sweeps; 'linnet train' trains it");
  if (options.only.empty()) return all;
  std::vector<std::string> labels;
  for (const RecipePoint& point : all) labels.push_back(point.label);
  for (const std::string& label : options.only) {
    require_usage(std::find(labels.begin(), labels.end(), label) != labels.end(),
                  Cause{ErrorCode::unknown_name, "--only", options.recipe}, "the sweep of ",
                  options.recipe, " has no point '", label, "': ", suggestion(label, labels));
  }
  std::erase_if(all, [&](const RecipePoint& point) {
    return std::find(options.only.begin(), options.only.end(), point.label) == options.only.end();
  });
  return all;
}

std::vector<Point> load_points(const SweepOptions& options) {
  std::vector<Point> points;
  std::set<std::string> folders;
  RowClaims claims;
  for (RecipePoint& point :
       chosen(load_recipe_points(options.recipe, options.overrides), options)) {
    const Cause cause{ErrorCode::conflict, "sweep", options.recipe};
    const std::string folder = folder_of_point(point.label);
    require_usage(is_plain_name(folder), cause, "the point '", point.label,
                  "' has a label that no folder can have (200 bytes at most); label its values: "
                  "{label: ..., key.path: value}");
    require_usage(folders.insert(folder).second, cause, "two points of the sweep have the folder ",
                  folder, "; label their values: {label: ..., key.path: value}");
    try {
      points.push_back({point.label, parse_recipe(point.node)});
      claims.add(points.back().recipe, point.label);
    } catch (const UsageError& error) {
      throw UsageError(error.cause(), concat("point ", point.label, ": ", error.what()));
    }
    points.back().recipe.path = options.recipe;
    points.back().recipe.point = point.label;
  }
  return points;
}

std::string directory_of(const SweepOptions& options, const std::vector<Point>& points) {
  return options.out.empty() ? default_directory(points.front().recipe.name, options.recipe, "")
                             : options.out;
}

// One point that is being trained.
struct Running {
  PointOutcome* outcome;
  std::unique_ptr<ChildProcess> process;
  Clock::time_point start = Clock::now();
};

class SweepRun {
 public:
  SweepRun(const SweepOptions& options, const std::vector<Point>& points)
      : options_(options), points_(points), folder_(directory_of(options, points)) {
    result_.directory = folder_.directory();
    for (const Point& point : points) {
      PointOutcome& outcome = result_.points.emplace_back();
      outcome.label = point.label;
      outcome.directory = join_path(folder_.directory(), folder_of_point(point.label));
    }
  }
  SweepRun(const SweepRun&) = delete;
  SweepRun& operator=(const SweepRun&) = delete;

  SweepOutcome execute() {
    const HoldStop hold;  // the processes save first
    while (true) {
      begin_more();
      if (running_.empty()) break;
      wait_for_lines();
      if (stop_signal() != 0 && !result_.stopped) stop();
      for (Running& one : running_) look_at(one);
      std::erase_if(running_, [](const Running& one) { return !one.process->running(); });
    }
    result_.stopped = stop_signal() != 0;
    return std::move(result_);
  }

 private:
  void begin_more();
  void begin(size_t index);
  void look_at(Running& one);
  void wait_for_lines() const;
  void stop();

  const SweepOptions& options_;
  const std::vector<Point>& points_;
  SweepFolder folder_;
  SweepOutcome result_;
  std::vector<Running> running_;
  size_t next_ = 0;
};

void SweepRun::begin_more() {
  while (stop_signal() == 0 && next_ < points_.size() &&
         running_.size() < static_cast<size_t>(options_.parallel)) {
    begin(next_++);
  }
}

void SweepRun::begin(size_t index) {
  PointOutcome& outcome = result_.points[index];
  if (folder_.is_finished(outcome.label, to_yaml(points_[index].recipe.resolved))) {
    outcome.state = PointState::finished;
    log_info("[", outcome.label, "] is finished");
    return;
  }
  log_info("[", outcome.label, "] begins, ", index + 1, " of ", points_.size());
  std::vector<std::string> arguments = {"train", options_.recipe};
  arguments.insert(arguments.end(), options_.overrides.begin(), options_.overrides.end());
  const std::string threads =
      std::to_string(std::max(1, thread_count() / std::max(1, options_.parallel)));
  for (const std::string& text : {std::string("--point"), outcome.label, std::string("--out"),
                                  outcome.directory, std::string("--threads"), threads}) {
    arguments.push_back(text);
  }
  arguments.insert(arguments.end(), options_.train_options.begin(), options_.train_options.end());
  try {
    running_.push_back({&outcome, std::make_unique<ChildProcess>(arguments)});
  } catch (const Error& error) {  // the others go on
    outcome.state = PointState::failed;
    outcome.exit_code = 1;
    outcome.error = error.what();
    log_error("[", outcome.label, "] ", outcome.error);
  }
}

// Waits until one of the processes says something, a moment at most: signals and ends are seen
// then.
void SweepRun::wait_for_lines() const {
  std::vector<pollfd> descriptors;
  for (const Running& one : running_) {
    descriptors.push_back({one.process->descriptor(), POLLIN, 0});
  }
  ::poll(descriptors.data(), descriptors.size(), 50);
}

void SweepRun::stop() {
  result_.stopped = true;
  log_info("stopping: ", running_.size(), running_.size() == 1 ? " run saves" : " runs save");
  for (const Running& one : running_) one.process->signal(SIGTERM);
}

void SweepRun::look_at(Running& one) {
  PointOutcome& outcome = *one.outcome;
  constexpr std::string_view kError = "error: ";
  for (const std::string& line : one.process->read_lines()) {
    log_info("[", outcome.label, "] ", line);
    if (line.starts_with(kError)) outcome.error = line.substr(kError.size());
  }
  if (one.process->running()) return;
  outcome.seconds = seconds_since(one.start);
  outcome.exit_code = one.process->exit_code();
  outcome.state = outcome.exit_code == 0          ? PointState::done
                  : outcome.exit_code == kStopped ? PointState::stopped
                                                  : PointState::failed;
  if (outcome.exit_code > kSignalled) {
    outcome.error = concat(text_of_signal(outcome.exit_code - kSignalled),
                           outcome.error.empty() ? "" : "; its last error: ", outcome.error);
  }
  if (outcome.state != PointState::done) return;
  try {
    // What the process read, should the file have changed meanwhile.
    folder_.finish(outcome.label, read_file(join_path(outcome.directory, "recipe.yaml")));
  } catch (const Error& error) {
    log_warning("the sweep cannot note that ", outcome.label, " is done: ", error.what());
  }
}

const char* name_of(PointState state) {
  switch (state) {
    case PointState::done:
      return "done";
    case PointState::finished:
      return "finished";
    case PointState::failed:
      return "failed";
    case PointState::stopped:
      return "stopped";
    case PointState::not_begun:
      return "not begun";
  }
  return "";
}

size_t longest_label(const std::vector<PointOutcome>& points) {
  size_t longest = 0;
  for (const PointOutcome& point : points) longest = std::max(longest, point.label.size());
  return longest;
}

}  // namespace

int SweepOutcome::exit_code() const {
  if (stopped) return kStopped;
  const bool all = std::all_of(points.begin(), points.end(), [](const PointOutcome& point) {
    return point.state == PointState::done || point.state == PointState::finished;
  });
  return all ? 0 : 1;
}

std::string SweepOutcome::text() const {
  std::ostringstream text;
  for (const PointOutcome& point : points) {
    text << std::left << std::setw(static_cast<int>(longest_label(points)) + 2) << point.label
         << std::setw(11) << name_of(point.state);
    if (point.seconds > 0) text << format_duration(point.seconds);
    if (point.state == PointState::failed) {
      text << "  exit code " << point.exit_code << (point.error.empty() ? "" : ": ") << point.error;
    }
    text << "\n";
  }
  return text.str();
}

JsonValue SweepOutcome::json() const {
  JsonValue list = JsonValue::array();
  for (const PointOutcome& point : points) {
    JsonValue one = JsonValue::object();
    one.set("label", point.label).set("directory", point.directory);
    one.set("state", name_of(point.state)).set("exit_code", point.exit_code);
    one.set("seconds", point.seconds);
    if (!point.error.empty()) one.set("error", point.error);
    list.push(std::move(one));
  }
  return JsonValue::object().set("directory", directory).set("points", std::move(list));
}

SweepOutcome run_sweep(const SweepOptions& options) {
  const std::vector<Point> points = load_points(options);
  return SweepRun(options, points).execute();
}

std::string preview_sweep(const SweepOptions& options, Device device) {
  const std::vector<Point> points = load_points(options);
  size_t longest = std::string("point").size();
  for (const Point& point : points) longest = std::max(longest, point.label.size());
  std::ostringstream text;
  const auto row = [&](const std::string& label, const auto& parameters, const auto& tokens,
                       const std::string& memory, const std::string& time) {
    text << std::left << std::setw(static_cast<int>(longest) + 2) << label << std::right
         << std::setw(12) << parameters << std::setw(16) << tokens << std::setw(12) << memory
         << std::setw(12) << time << "\n";
  };
  row("point", "parameters", "tokens", "memory", "time");
  double seconds = 0;
  for (const Point& point : points) {
    TrainOptions train_options;
    train_options.out = join_path(directory_of(options, points), folder_of_point(point.label));
    train_options.device = device;
    train_options.dry_run = true;
    reset_peak_memory(device);
    const DryRun found = *train(point.recipe, train_options).dry_run;
    row(point.label, found.parameters, found.tokens, concat(found.peak.tensors >> 20, " MiB"),
        format_duration(found.seconds));
    seconds += found.seconds;
  }
  text << points.size() << (points.size() == 1 ? " point" : " points") << ", "
       << format_duration(seconds) << " one after the other on this device\n";
  return text.str();
}

}  // namespace linnet
