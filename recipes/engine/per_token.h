// What each token of a scored text cost, in a file for other programs.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/column_file.h"
#include "data/packing.h"

namespace linnet {

struct PerTokenRequest {
  std::string path;                          // .safetensors, or else HDF5
  std::map<std::string, std::string> about;  // attributes of the file
};

// A row for each scored token, in the order of the split, whatever windows it was scored in: "id"
// i32, "nll" f64 in nats, "document" i32 (its number in the split, from 0) and "position" i64 (in
// its document, from 0). Memory does not grow with the number of tokens, but with that of windows.
class PerTokenFile {
 public:
  // `set` must outlive it.
  PerTokenFile(const PerTokenRequest& request, const EvaluationSet& set);
  // A batch of the set, and the loss of each of its targets.
  void add(const Batch& batch, std::span<const double> losses);
  // The file takes its place; without it there is none.
  void commit() { file_.commit(); }

 private:
  const EvaluationSet* set_;
  std::vector<int64_t> first_rows_;  // of each window
  ColumnFile file_;
};

}  // namespace linnet
