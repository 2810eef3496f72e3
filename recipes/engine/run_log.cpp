#include "recipes/engine/run_log.h"

#include <algorithm>

#include "core/device.h"
#include "core/log.h"
#include "recipes/engine/environment.h"

namespace linnet {

RunLog::RunLog(const TrainConfig& config, const StopLimits& limits, Device device,
               int64_t parameters, const std::string& run_directory, int64_t resumed_at)
    : every_steps_(config.log_every_steps),
      limits_(limits),
      device_(device),
      parameters_(parameters) {
  if (!run_directory.empty()) metrics_.emplace(run_directory, resumed_at);
}

RunLog::~RunLog() {
  end_progress();
}

void RunLog::update(const Progress& progress, const UpdateResult& result) {
  if (!metrics_) return;
  window_seconds_ += result.seconds;
  window_tokens_ += result.tokens;
  if (progress.step % every_steps_ != 0 && !limits_.reached(progress)) return;
  TrainMetrics metrics;
  metrics.step = progress.step;
  metrics.tokens = progress.tokens;
  metrics.loss = result.loss;
  metrics.lr = result.lr;
  metrics.grad_norm = result.gradient_norm;
  metrics.tokens_per_s = static_cast<double>(window_tokens_) / std::max(window_seconds_, 1e-9);
  const uint64_t resident = peak_resident_memory_bytes();
  metrics.more.set("seconds", progress.seconds)
      .set("wall_seconds", progress.wall_seconds)
      .set("peak_tensor_bytes", static_cast<int64_t>(peak_allocated_bytes(device_)))
      .set("resident_bytes", static_cast<int64_t>(resident_memory_bytes()))
      .set("peak_resident_bytes", static_cast<int64_t>(resident))
      .set("parameters", parameters_)
      .set("skipped", progress.skipped);
  progress_line_.show(
      format_progress(metrics, limits_.last_step(), limits_.seconds_left(progress), resident));
  metrics_->write(metrics);
  window_seconds_ = 0;
  window_tokens_ = 0;
}

void RunLog::scores(int64_t step, const std::vector<Score>& scores, const JsonValue& more) {
  if (!metrics_) return;
  const char* which = more.find("best") == nullptr ? "step " : "best checkpoint, step ";
  for (const Score& score : scores) {
    EvaluationMetrics metrics = score.metrics(step);
    for (const JsonMember& member : more.members()) metrics.more.set(member.key, member.value);
    metrics_->write(metrics);
    log_info(which, step, ": ", score.text());
  }
}

}  // namespace linnet
