// One update of the weights: what it is made of, and what it measured.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "recipes/engine/job.h"
#include "recipes/engine/run_state.h"
#include "recipes/engine/task.h"

namespace linnet {

class UpdateWork;

// The parts of a training step. Refers to objects that its maker owns.
struct TrainParts {
  const Recipe& recipe;
  const Task& task;
  const Transformer& model;
  Updater& updater;
  Job& job = alone();
};

// Examples of an update. Throws UsageError where train.tokens_per_update is no multiple.
int64_t examples_per_update(const TrainConfig& config, int64_t tokens_per_example);

// One update over `examples_per_update` examples from progress.examples on, and what it measured.
struct UpdateResult {
  double loss = 0;           // mean nats per target
  double gradient_norm = 0;  // of the mean loss, before clipping
  double lr = 0;
  std::optional<double> beta1;  // where the schedule cycles it
  int64_t targets = 0;
  // Targets; of masked language models all tokens, of classifiers all but padding.
  int64_t tokens = 0;
  int64_t own_examples = 0;  // that this process computed
  // That it took. Of several processes all have those of rank 0: until it began to sum over ranks,
  // and what came after that in the update before.
  double seconds = 0;
  bool skipped = false;              // a gradient was not finite: weights unchanged
  std::string non_finite_parameter;  // the first parameter with such a gradient
  std::string non_finite_origin;     // in words, where it came from: see non_finite.h
  // The parameter (the loss, when none has such a gradient) and the origin in words.
  std::string non_finite_place() const;
};

// Examples of the data, counted from the first one of an update.
struct ExampleRange {
  int64_t first = 0, count = 0;
};

// Loss and gradients of one update are sums over micro-batches divided by all targets together, so
// that cutting the update differently changes rounding only. Of several processes each takes as
// many examples, those of rank 0 first. Refers to its arguments.
class TrainStep {
 public:
  // Throws UsageError where the examples of an update do not divide by the processes of the job.
  TrainStep(const Recipe& recipe, const Task& task, const Transformer& model, Updater& updater,
            Job& job = alone());
  ~TrainStep();
  // `next_batch` yields the micro-batches of this update and those after it in order (see
  // micro_batches()). One more is taken than an update needs: the first of the next update, which
  // is made ready while a device computes. What it throws is thrown when its turn comes. A process
  // that is alone throws Interrupted, weights, buffers and progress unchanged, once a stop that is
  // held (HoldStop) is requested while gradients are computed; this object is of no use then.
  UpdateResult run(Progress& progress, const std::function<Batch()>& next_batch);
  // The micro-batches of this process in every update.
  const std::vector<ExampleRange>& micro_batches() const { return micro_batches_; }
  int64_t examples_per_update() const { return examples_per_update_; }
  // Tokens, as results count them, of an update on average over some from there on: where rows are
  // of other lengths, updates differ.
  double mean_tokens(const Progress& from) const;
  int processes() const { return parts_.job.size(); }

 private:
  Batch take(const std::function<Batch()>& next_batch);
  void look_ahead(const std::function<Batch()>& next_batch);

  TrainParts parts_;
  std::unique_ptr<UpdateWork> work_;
  std::optional<Batch> ahead_;
  std::exception_ptr failure_;  // of taking it
  int64_t examples_per_update_ = 0;
  std::vector<ExampleRange> micro_batches_;
  double after_sums_ = 0;  // seconds of the update before that are not counted yet
};

}  // namespace linnet
