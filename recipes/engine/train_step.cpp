// One update: its micro-batches, and what became of it.
#include "recipes/engine/train_step.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/cuda/backend.h"
#include "core/interrupt.h"
#include "optim/clip.h"
#include "recipes/engine/memory_need.h"
#include "recipes/engine/non_finite.h"
#include "recipes/engine/update_work.h"

namespace linnet {
namespace {

using Clock = std::chrono::steady_clock;

// The tokens that throughput counts.
int64_t tokens_of(const Batch& batch) {
  if (!batch.places.empty()) return batch.B * batch.T;
  if (batch.labels.empty()) return batch.target_count;
  if (batch.mask.empty()) return batch.B * batch.T;
  return std::count(batch.mask.begin(), batch.mask.end(), uint8_t{1});
}

// Advice where a micro-batch of `examples` did not fit; `held` bytes were held before it. Memory
// grows with the examples, so that the share that fitted says how many would.
std::string remedy(const OutOfMemory& error, int64_t examples, size_t held) {
  const auto used = static_cast<double>(error.held - std::min(held, error.held));
  const double share =
      (used + static_cast<double>(error.free)) / (used + static_cast<double>(error.requested));
  const int64_t fitting =
      std::min(examples - 1, static_cast<int64_t>(share * static_cast<double>(examples)));
  if (fitting < 1) {
    return concat("; not even one example fits: shorten data.context, or make the model smaller");
  }
  return concat("; a micro-batch of ", examples, " examples did not fit, about ", fitting,
                " would: set train.micro_batch=", fitting,
                " (the update stays the same), or train.recompute=block");
}

// Far more than any run needs, and products of sizes stay far below what 64 bits hold.
constexpr int64_t kMaxTokens = int64_t{1} << 40;
constexpr int64_t kMaxMicroBatches = int64_t{1} << 20;

int64_t bounded(int64_t examples, int64_t tokens_per_example, const TrainConfig& config) {
  const int64_t most = std::max<int64_t>(1, kMaxTokens / tokens_per_example);
  const char* key =
      config.tokens_per_update ? "train.tokens_per_update" : "train.examples_per_update";
  require_usage(examples <= most, Cause{ErrorCode::out_of_range, key}, key, ": an update of ",
                examples, " examples of ", tokens_per_example, " tokens is beyond the limit of ",
                kMaxTokens, " tokens");
  const int64_t parts = (examples - 1) / config.micro_batch + 1;
  require_usage(parts <= kMaxMicroBatches, Cause{ErrorCode::out_of_range, "train.micro_batch"},
                "an update of ", examples, " examples in micro-batches of ", config.micro_batch,
                " has ", parts, " of them, and ", kMaxMicroBatches,
                " is the limit; raise train.micro_batch, or make the update smaller");
  return examples;
}

int64_t examples_of_rank(int64_t examples, const TrainConfig& config, const Job& job) {
  const int64_t size = job.size();
  const char* key =
      config.tokens_per_update ? "train.tokens_per_update" : "train.examples_per_update";
  require_usage(examples % size == 0, Cause{ErrorCode::conflict, key}, "an update of ", examples,
                " examples cannot be shared by ", size, " processes: start as many as divide ",
                examples, ", or change ", key);
  return examples / size;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

int64_t examples_per_update(const TrainConfig& config, int64_t tokens_per_example) {
  if (!config.tokens_per_update)
    return bounded(*config.examples_per_update, tokens_per_example, config);
  const int64_t tokens = *config.tokens_per_update;
  require_usage(tokens % tokens_per_example == 0,
                Cause{ErrorCode::conflict, "train.tokens_per_update"}, "train.tokens_per_update ",
                tokens, " must be a multiple of the ", tokens_per_example,
                " tokens of one example; use ",
                std::max<int64_t>(1, tokens / tokens_per_example) * tokens_per_example);
  return bounded(tokens / tokens_per_example, tokens_per_example, config);
}

std::string UpdateResult::non_finite_place() const {
  const std::string place =
      non_finite_parameter.empty() ? "the loss" : concat("the gradient of ", non_finite_parameter);
  if (non_finite_origin.empty() || non_finite_origin == place) return place;
  return concat(place, " (first: ", non_finite_origin, ")");
}

TrainStep::TrainStep(const Recipe& recipe, const Task& task, const Transformer& model,
                     Updater& updater, Job& job)
    : parts_{recipe, task, model, updater, job} {
  examples_per_update_ = linnet::examples_per_update(recipe.train, task.tokens_per_example());
  const int64_t own = examples_of_rank(examples_per_update_, recipe.train, job);
  require_update_memory(recipe, model, std::min(recipe.train.micro_batch, own),
                        task.tokens_per_example());
  const int64_t begin = own * job.rank(), end = begin + own;
  for (int64_t first = begin; first < end; first += micro_batches_.back().count) {
    micro_batches_.push_back({first, std::min(end - first, recipe.train.micro_batch)});
  }
  if constexpr (kCuda) {
    if (on_cuda(model.parameters().weights())) work_ = make_device_update(parts_);
  }
  if (work_ == nullptr) work_ = make_host_update(parts_);
}

// Where UpdateWork is known.
TrainStep::~TrainStep() = default;

Batch TrainStep::take(const std::function<Batch()>& next_batch) {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  if (!ahead_) return next_batch();
  Batch batch = std::move(*ahead_);
  ahead_.reset();
  return batch;
}

void TrainStep::look_ahead(const std::function<Batch()>& next_batch) {
  try {
    ahead_ = next_batch();
    work_->prepare(*ahead_);
  } catch (const OutOfMemory&) {
    // add() will try again, and say what would fit.
  } catch (...) {
    failure_ = std::current_exception();
  }
}

double TrainStep::mean_tokens(const Progress& from) const {
  constexpr int64_t kUpdates = 64;
  int64_t tokens = 0;
  for (int64_t update = 0; update < kUpdates; ++update) {
    const int64_t first = from.examples + update * examples_per_update_;
    for (const ExampleRange& part : micro_batches_) {
      tokens += tokens_of(parts_.task.train_batch(first + part.first, part.count));
    }
  }
  return static_cast<double>(tokens * processes()) / kUpdates;
}

UpdateResult TrainStep::run(Progress& progress, const std::function<Batch()>& next_batch) {
  UpdateResult result;
  Clock::time_point start = Clock::now();
  const size_t held = allocated_bytes(parts_.model.device());
  const RunningBuffers before(parts_.model.parameters());
  work_->begin(progress.step);
  for (size_t i = 0; i < micro_batches_.size(); ++i) {
    const Batch batch = take(next_batch);
    // Others would wait for the sums of one that gave up.
    std::optional<Interruptible> until_submitted;
    if (parts_.job.is_alone()) until_submitted.emplace();
    try {
      work_->add(batch, i + 1 == micro_batches_.size());
    } catch (const OutOfMemory& error) {
      throw OutOfMemory(error.what() + remedy(error, batch.B / batch.rows_per_example, held),
                        error.requested, error.free, error.held);
    } catch (const Interrupted&) {
      before.restore();  // whoever goes on makes the update from its beginning
      throw;
    }
    result.targets += batch.target_count;
    result.tokens += tokens_of(batch);
    result.own_examples += batch.B / batch.rows_per_example;
  }
  if (!parts_.job.is_alone()) {
    result.seconds = seconds_since(start) + after_sums_;
    start = Clock::now();
    work_->sum(result);
  }
  require(result.targets > 0, "update ", progress.step, " has no target tokens");
  result.lr = parts_.updater.schedule->lr(progress.step);
  result.beta1 = parts_.updater.schedule->beta1(progress.step);
  work_->submit(result);
  look_ahead(next_batch);
  work_->finish(result);
  if (result.skipped) {
    const Tensor gradients = parts_.model.parameters().gradients().to(Device{});
    const std::string found = first_non_finite(gradients, parts_.updater.layout);
    for (const std::string& name : parts_.job.ranks().all_gather_text(found)) {
      if (result.non_finite_parameter.empty()) result.non_finite_parameter = name;
    }
    result.non_finite_origin = origin_of_non_finite(parts_, micro_batches_, progress);
    ++progress.skipped;
    ++progress.skipped_in_a_row;
  } else {
    progress.skipped_in_a_row = 0;
  }
  ++progress.step;
  progress.examples += examples_per_update_;
  progress.tokens += result.tokens;
  (parts_.job.is_alone() ? result.seconds : after_sums_) = seconds_since(start);
  progress.seconds += result.seconds;
  return result;
}

}  // namespace linnet
