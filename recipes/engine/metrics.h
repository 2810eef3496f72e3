// The measurements of a run: metrics.jsonl and TensorBoard curves, and the progress line.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/config_node.h"
#include "core/files.h"
#include "core/json.h"
#include "recipes/engine/tensorboard.h"

namespace linnet {

// The lines of metrics.jsonl, by `kind`. A name means the same in every kind of line that has it;
// README.md in this folder explains each.
struct TrainMetrics {
  int64_t step = 0;    // updates done
  int64_t tokens = 0;  // target tokens seen so far
  double loss = 0;     // nats per target token
  double lr = 0;
  double grad_norm = 0;  // before clipping
  double tokens_per_s = 0;
  JsonValue more = JsonValue::object();  // further members of the line
};

// How the text of a split is presented to the model that scores it.
struct ScoredText {
  int64_t length = 0;      // of a window, or of a chunk when streaming; 0: whole examples
  int64_t stride = 0;      // of windows; 0: not known
  bool streaming = false;  // whole documents in chunks, whose length changes the memory alone
  // "context 512", "context 512, stride 64", "chunks of 512", or "" for whole examples. The stride
  // of windows that do not overlap is left out unless it is asked for.
  std::string text(bool with_stride = false) const;
  // "_512", "_512_stride_64", "_512_streaming" or "": the end of a curve's name.
  std::string suffix() const;
  // Whether text() is the same, found without making it.
  bool reads_as(const ScoredText& other) const;
};

struct EvaluationMetrics {
  int64_t step = 0;
  std::string split;
  ScoredText scored;
  double nll = 0;  // nats per token
  std::optional<double> perplexity;
  std::optional<double> bits_per_byte;
  std::optional<double> accuracy;
  JsonValue more = JsonValue::object();
};

// A file of a run directory, what 'linnet evaluate' found of its checkpoints: evaluation lines in
// the order in which they were made, each with its `time` (UTC).
inline constexpr const char* kLaterEvaluations = "evaluations.jsonl";

inline constexpr const char* kTrainLine = "train";
inline constexpr const char* kEvaluationLine = "evaluation";
JsonValue to_json(const TrainMetrics& metrics);
JsonValue to_json(const EvaluationMetrics& metrics);

// Appends to metrics.jsonl (one object a line) and tensorboard/ in a run directory. A run taken up
// again after step S keeps the lines up to step S and rewrites those after it, so that none is
// lost or twice there. For this the caller writes everything about step S, calls sync(), and only
// then saves the checkpoint of S. All functions throw Error when the disk refuses.
class MetricsLog {
 public:
  // `resumed_at`: the step of the checkpoint that the run goes on from; -1 starts afresh, and
  // forgets all lines of an earlier run in the directory.
  explicit MetricsLog(const std::string& run_directory, int64_t resumed_at = -1);
  void write(const TrainMetrics& metrics);
  void write(const EvaluationMetrics& metrics);
  // Tells TensorBoard the settings of a resolved recipe, each by its dotted path.
  void write_hyperparameters(const ConfigNode& recipe);
  // Forces all lines to the disk.
  void sync();

 private:
  std::unique_ptr<File> file_;
  TensorBoardWriter tensorboard_;
};

// One line about a training step, such as
// "step 120/5000  loss 2.3451  lr 5.00e-04  norm 0.82  12.3k tok/s  ETA 3:20  812 MB".
// Unknown totals and times are left out.
std::string format_progress(const TrainMetrics& metrics, std::optional<int64_t> last_step,
                            std::optional<double> eta_s, uint64_t memory_bytes);

// Shows format_progress lines: redrawn in place on a terminal, elsewhere a plain log line for the
// first step and then at most one every `plain_every_s` seconds.
class ProgressLine {
 public:
  explicit ProgressLine(double plain_every_s = 15) : plain_every_s_(plain_every_s) {}
  void show(const std::string& line);
  // The last line stays on the screen; elsewhere it is logged if it was held back.
  void finish();

 private:
  double plain_every_s_;
  std::string held_back_;
  std::optional<std::chrono::steady_clock::time_point> last_shown_;
};

}  // namespace linnet
