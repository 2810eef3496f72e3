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
  const auto add = [&](const std::vector<Score>& scores, WeightFormat weights) {
    for (const Score& score : scores) {
      EvaluationMetrics metrics = score.metrics(report.step);
      metrics.more.set("time", utc_now());
      if (weights != WeightFormat::f32) metrics.more.set("weights", name_of(weights));
      lines += to_json(metrics).dump() + "\n";
    }
  };
  add(report.scores, WeightFormat::f32);
  add(report.packed_scores, report.weights);
  File file(join_path(run, kLaterEvaluations), OpenMode::append);
  file.write(lines);
  file.close();
}

}  // namespace linnet
