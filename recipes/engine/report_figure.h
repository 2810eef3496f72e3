// The figure of a published row, as a run measured it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "recipes/engine/report_data.h"

namespace linnet {

// The state of a row of speed, memory or the like.
inline constexpr const char* kOfNoRun = "not measured by a training run";

struct RunFigure {
  std::optional<double> value;  // in the paper's unit: accuracy in percent
  // Why there is none: "missing" (no such evaluation), how the run ended (name_of(RunEnd)), "other
  // first stage" (it began from a run of no table's recipe), or kOfNoRun.
  std::string state;
  int64_t examples = 0;  // that were scored for it; 0 where they are not counted
};

// `row`: one that the run's recipe claims (rows_of). Accuracy and perplexity are those of
// - the evaluations that the row asks for: its split (else published.split), and windows as
//   published.cells say, of its eval_context, or else of the training context;
// - a later 'linnet evaluate', the last one where there are several; else the training run's own:
//   of the validation split, at the step that checkpoint.best chooses; of another split, the last
//   one; of a row with progress=20%, that at this share of the run's updates.
// A run that did not finish has neither, nor has one whose first stage was another. A figure that
// is not finite counts as diverged.
RunFigure figure_of(const RunData& run, const PublishedRow& row);

// The value of one of the curves of `evaluations`, both of the run, that stands for the run: of the
// validation split, at the step that checkpoint.best of its recipe chooses by the first evaluations
// of that split; else the last one. Nothing of an empty curve.
std::optional<double> figure_at(const RunData& run, const EvaluationCurves& evaluations,
                                const MetricCurve& curve);

// The split that gives the row: its own, else that of the run's `published`.
std::string split_of(const RunData& run, const PublishedRow& row);

// Median over the lines of its log, in tokens per second; nothing where none is finite.
std::optional<double> training_speed(const RunData& run);
// Of its tensors, else of its process, in bytes; 0 where the run does not say.
int64_t peak_memory(const RunData& run);

}  // namespace linnet
