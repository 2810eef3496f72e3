#include "recipes/engine/later_evaluations.h"

#include "core/files.h"
#include "recipes/engine/environment.h"
#include "recipes/engine/run_directory.h"

namespace linnet {

void keep_evaluation(const EvaluateReport& report) {
  const std::string folder = parent_path(report.checkpoint), run = parent_path(folder);
  if (report.partial || report.data != "unchanged" || report.scores.empty() ||
      file_name(folder) != "checkpoints" || !is_run(run))
    return;
  std::string lines;
  for (const Score& score : report.scores) {
    EvaluationMetrics metrics = score.metrics(report.step);
    metrics.more.set("time", utc_now());
    lines += to_json(metrics).dump() + "\n";
  }
  File file(join_path(run, kLaterEvaluations), OpenMode::append);
  file.write(lines);
  file.close();
}

}  // namespace linnet
