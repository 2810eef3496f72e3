// How a run ended, as its directory tells it.
#pragma once

#include <string>
#include <string_view>

#include "core/config_node.h"

namespace linnet {

enum class RunEnd {
  finished,    // one of its limits was reached
  unfinished,  // it runs, was stopped, or was cut short
  diverged,    // too many updates in a row were not finite
  out_of_memory,
  failed  // for any other reason
};

// Beginnings of lines in log.txt that say it.
inline constexpr std::string_view kDoneLine = "done at step ", kIdleLine = "nothing was trained",
                                  kStoppedLine = "stopped by signal ",
                                  kBegunLine = "run directory: ", kContinuedLine = "continuing ",
                                  kDivergedLine = "training diverged: ";

// "finished", "unfinished", "diverged", "out of memory", "failed".
const char* name_of(RunEnd end);

// By the last line of its log.txt that says so; where none does, a run is finished that has as many
// updates, `steps`, as train.max_steps of its resolved recipe.
RunEnd run_end(const std::string& run_directory, const ConfigNode& recipe, double steps);

}  // namespace linnet
