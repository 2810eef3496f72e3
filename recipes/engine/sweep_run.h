// Training all points of a recipe's sweep, each in a process of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/json.h"

namespace linnet {

struct SweepOptions {
  std::string recipe;  // path
  std::vector<std::string> overrides;
  std::vector<std::string> only;  // labels of points; empty: all
  std::string out;                // where the points' run directories go; "": runs/<recipe name>
  int parallel = 1;               // processes at a time, which share the threads
  std::vector<std::string> train_options;  // handed on to 'linnet train': --device, --plugin
};

enum class PointState {
  done,      // trained to its end
  finished,  // it was before: nothing was done
  failed,
  stopped,   // saved after a signal; the next sweep continues it
  not_begun  // a signal came before its turn
};

struct PointOutcome {
  std::string label, directory;
  PointState state = PointState::not_begun;
  int exit_code = 0;  // of its process, 128 + n where signal n ended it
  double seconds = 0;
  std::string error;  // the last error that it told, or which signal ended it; "" for none
};

struct SweepOutcome {
  std::string directory;
  std::vector<PointOutcome> points;  // in the order of the sweep
  bool stopped = false;              // by a signal

  // 0; 1 where a point failed; 3 after a signal.
  int exit_code() const;
  // A line for each point.
  std::string text() const;
  JsonValue json() const;
};

// Trains each point into <out>/<its label>, continuing those that were interrupted and skipping
// those that an earlier sweep trained to their end by the same recipe, which <out>/sweep.json
// records. A point that fails does not keep the others from running. SIGTERM, SIGINT or SIGUSR1
// goes on to the points that run, and the sweep ends when all have saved. Throws UsageError before
// anything runs for a recipe without a sweep, for points that 'train' would refuse when it reads
// them, for two that claim one published row by different recipes, for unknown labels, and where
// another sweep runs in the same folder.
SweepOutcome run_sweep(const SweepOptions& options);

// A line for each point: parameters, tokens that are left to train on, and the time that this takes
// by one timed update. Writes nothing.
std::string preview_sweep(const SweepOptions& options, Device device);

}  // namespace linnet
