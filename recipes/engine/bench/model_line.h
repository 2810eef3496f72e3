// The lines of `linnet bench model --json`, written and read (recipes/engine/README.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "recipes/engine/bench/model.h"

namespace linnet {

// A measurement, and everything on which it depends.
struct ModelBenchLine {
  ModelBench bench;
  BenchMode mode = BenchMode::train;
  std::vector<std::string> overrides;   // "key.path=value" of the command
  std::optional<int64_t> batch_given;   // empty: doubled until memory ended
  std::optional<int64_t> memory_bytes;  // that tensors on a CPU could hold
  int64_t vocabulary = 0;
  std::string device, device_name;
  int64_t threads = 1;
  std::string date, commit;
  std::string place;  // "t2.jsonl:3" of one that was read
};

JsonValue to_json(const ModelBenchLine& line);

// All lines of a file of at most 64 MiB. Throws UsageError naming file and line where one is cut,
// of another program or of other keys, or names a published row that there is not.
std::vector<ModelBenchLine> read_model_benches(const std::string& path);

}  // namespace linnet
