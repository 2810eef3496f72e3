// What `linnet bench model` measures, and the lines of its --json, written and read
// (recipes/engine/README.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "recipes/engine/recipe.h"

namespace linnet {

// Whole updates, or forward passes of the trunk (embedding and blocks, no head) without gradients.
enum class BenchMode { train, inference };

// A point of a recipe at one length.
struct ModelBench {
  std::string recipe, point;                 // its name; "" where nothing is swept
  std::string attention;                     // the mechanisms of its layers, "local, lavo"
  std::optional<PublishedConfig> published;  // of the recipe at that point
  std::string precision;                     // "f32" or "bf16"
  int64_t length = 0, batch = 0;             // rows of `length` tokens; batch 0: not even one fits
  int64_t parameters = 0;
  double seconds = 0;     // median of an update or a forward pass
  size_t peak_bytes = 0;  // held by tensors; of inference without gradients, which it does not use
  bool fits() const { return batch > 0; }
  double rate() const { return 1 / seconds; }  // of updates or forward passes a second
};

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
