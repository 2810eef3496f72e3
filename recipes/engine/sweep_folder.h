// The folder of a sweep: one sweep at a time, and a record of the points that are done.
#pragma once

#include <map>
#include <string>

#include "core/files.h"

namespace linnet {

// Holds the lock of <directory>/sweep.lock and keeps <directory>/sweep.json, which says of each
// point that a sweep trained to its end by which recipe that was.
class SweepFolder {
 public:
  // Makes the directory where it is missing. Throws UsageError when another sweep holds it, and
  // where it is a run itself or sweep.json is no record of a sweep.
  explicit SweepFolder(const std::string& directory);

  const std::string& directory() const { return directory_; }
  // Whether the point was trained to its end by this resolved recipe, and its run is still there.
  bool is_finished(const std::string& label, const std::string& recipe) const;
  // Adds it, for good.
  void finish(const std::string& label, const std::string& recipe);

 private:
  std::string directory_, record_;
  File lock_;
  std::map<std::string, std::string> finished_;  // label: hash of the recipe
};

}  // namespace linnet
