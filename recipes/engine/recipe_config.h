// The sections of a recipe that belong to the engine: init, train, evaluate, checkpoint, generate.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/kernel_choice.h"

namespace linnet {

// Storage of activations and of the weights that products see; sums are always at least f32.
enum class Precision { f32, bf16 };

// Positions have 32 bits.
inline constexpr int64_t kMaxTokensAtOnce = int64_t{1} << 30;
inline constexpr int64_t kLongestSample = int64_t{1} << 24;

// What the backward pass computes again instead of keeping.
enum class Recompute { none, block };

// What a run takes over: weights alone, or the optimizer and the position in the data, too.
enum class InitState { weights, all };

// The init.map of a checkpoint of linnet, where each parameter is by its name.
inline constexpr const char* kLinnetMap = "linnet";

// What a new run begins from instead of freshly drawn weights.
struct InitConfig {
  std::string from;
  std::string map = kLinnetMap;  // or the name of a family of pretrained models
  InitState state = InitState::weights;

  static void describe(ConfigDescription<InitConfig>& d);
  void validate(const ConfigNode& at) const;
};

// When training stops, how large an update is, what is logged.
struct TrainConfig {
  std::optional<int64_t> max_steps, max_tokens;
  std::optional<double> max_minutes, max_epochs;
  std::optional<int64_t> tokens_per_update, examples_per_update;  // exactly one of them
  int64_t micro_batch = 1;
  Precision precision = Precision::f32;
  Recompute recompute = Recompute::none;
  bool cuda_graph = true;
  KernelChoice backend = KernelChoice::automatic;
  Precision reduce = Precision::f32;
  double bucket_mib = 4;
  bool shard_optimizer = false;
  int64_t log_every_steps = 10;
  int64_t max_nonfinite_steps = 5;

  static void describe(ConfigDescription<TrainConfig>& d);
  void validate(const ConfigNode& at) const;
};

// One way to present a text to the model that scores it.
struct ScoringProtocol {
  std::optional<int64_t> context;  // none: the training context
  std::optional<int64_t> stride;   // none: windows do not overlap
  bool carry_state = false;

  static void describe(ConfigDescription<ScoringProtocol>& d);
  void validate(const ConfigNode& at) const;
  bool operator==(const ScoringProtocol&) const = default;
};

// When and how held-out data is scored.
struct EvaluateConfig {
  int64_t every_steps = 0;
  bool at_end = true;
  std::vector<int64_t> at_progress;  // percent of the run's updates
  std::string split = "validation";
  std::vector<int64_t> contexts;
  int64_t batch = 1;
  std::optional<int64_t> stride;
  bool carry_state = false;
  std::vector<ScoringProtocol> protocols;  // instead of contexts, stride and carry_state
  std::optional<int64_t> max_tokens;
  std::optional<std::string> best_on;  // the split that the best checkpoint is scored on at the end

  // Whether a run evaluates at all.
  bool scores_anything() const { return every_steps > 0 || at_end || !at_progress.empty(); }
  static void describe(ConfigDescription<EvaluateConfig>& d);
  void validate(const ConfigNode& at) const;
};

// When the run is saved and what is kept.
struct CheckpointConfig {
  int64_t every_steps = 0;
  std::optional<double> every_minutes;
  int64_t keep = 3;
  std::string best = "nll";

  static void describe(ConfigDescription<CheckpointConfig>& d);
};

// The sample that a run writes, and the defaults of `linnet generate`.
struct SampleConfig {
  std::string prompt;
  int64_t tokens = 200;
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 1.0;
  std::optional<int64_t> seed;

  static void describe(ConfigDescription<SampleConfig>& d);
};

}  // namespace linnet
