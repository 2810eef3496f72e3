// Run directories whose recipes name published rows, as 'linnet train' would leave them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/files.h"
#include "recipes/engine/metrics.h"

namespace linnet::test {

struct PublishedRun {
  std::string table = "survey T2", task = "lra_listops", model = "LinearAttn";
  std::string more;      // further keys of `published`, "split: validation"
  std::string sections;  // of the recipe, "optim: {lr: 1}\n"
  int64_t seed = 1, steps = 10;
  std::optional<double> accuracy, perplexity;  // of the test split, after the last update
  std::string log = "info    done at step 10: reached train.max_steps 10; report: x";

  void write(const std::string& path) const {
    {
      MetricsLog metrics(path);
      TrainMetrics train;
      train.step = steps;
      train.tokens = steps * 100;
      train.loss = 1;
      train.tokens_per_s = 1000;
      train.more.set("parameters", 1'500'000).set("wall_seconds", 60.0);
      train.more.set("peak_tensor_bytes", 2'000'000);
      metrics.write(train);
      if (accuracy || perplexity) {
        EvaluationMetrics evaluation;
        evaluation.step = steps;
        evaluation.split = "test";
        if (perplexity) evaluation.scored = {512, 512, false};
        evaluation.nll = 1;
        evaluation.accuracy = accuracy;
        evaluation.perplexity = perplexity;
        metrics.write(evaluation);
      }
    }
    write_file(join_path(path, "recipe.yaml"),
               concat("name: r\nseed: ", seed, "\ndata: {context: 512}\n", sections,
                      "published: {table: ", table, ", task: ", task, ", model: \"", model, "\"",
                      more.empty() ? "" : ", ", more, "}\n"));
    if (!log.empty())
      write_file(join_path(path, "log.txt"), concat("2026-01-31T23:59:59Z ", log, "\n"));
  }
};

// A line of a run's metrics.jsonl, or of its evaluations.jsonl.
inline void add_line(const std::string& run, const std::string& file, const std::string& line) {
  File out(join_path(run, file), OpenMode::append);
  out.write(line + "\n");
}

}  // namespace linnet::test
