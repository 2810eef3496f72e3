// What `linnet bench model` and `bench decode` measure, and the lines of their --json, written and
// read (recipes/engine/README.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "recipes/engine/recipe.h"

namespace linnet {

// Of `bench model`: whole updates, or forward passes of the trunk (embedding and blocks, no head)
// without gradients. Of `bench decode`: steps of generation from the decode state, or the whole
// text through the model for each token.
enum class BenchMode { train, inference, decode, recompute };

// Of steps from the decode state that lead to a length.
struct DecodeFigures {
  int64_t prompt = 0;       // tokens read before the first step
  int64_t steps = 0;        // since the length before
  double p95_seconds = 0;   // of them
  double tokens_per_s = 0;  // of all rows together, from the prompt to this length
  size_t state_bytes = 0;   // of all rows, at this length
};

// A point of a recipe at one length.
struct ModelBench {
  std::string recipe, point;                 // its name; "" where nothing is swept
  std::string attention;                     // the mechanisms of its layers, "local, lavo"
  std::optional<PublishedConfig> published;  // of the recipe at that point
  std::string precision;          // "f32" or "bf16"; "int8 weights" as decoding reads them
  int64_t length = 0, batch = 0;  // rows of `length` tokens; batch 0: not even one fits
  int64_t parameters = 0;
  double seconds = 0;     // median of an update, a forward pass or a step
  size_t peak_bytes = 0;  // held by tensors; of inference without gradients, which it does not use
  std::optional<DecodeFigures> decode;  // of BenchMode::decode
  bool fits() const { return batch > 0; }
  double rate() const { return 1 / seconds; }  // of updates, forward passes or steps per second
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
