#include "recipes/engine/run_summary.h"

#include <cmath>

#include "layers/attention_sections.h"

namespace linnet {
namespace {

// YAML as it is written, for enumerations: "adamw".
std::string written(const ConfigNode& section, const char* key) {
  return section.find(key)->raw();
}

std::string describe_update(const Recipe& recipe, const Task& task, const TrainStep& step) {
  const ConfigNode& optim = *recipe.resolved.find("optim");
  const int64_t examples = step.examples_per_update(), tokens = task.tokens_per_example();
  const size_t parts = step.micro_batches().size();
  const std::string size = task.kind() == TaskKind::classification
                               ? concat("of at most ", tokens, " tokens")
                               : concat("of ", tokens, " tokens (", examples * tokens, " in all)");
  return concat("update: ", examples, examples == 1 ? " example " : " examples ", size, " in ",
                parts, parts == 1 ? " micro-batch" : " micro-batches",
                step.processes() > 1 ? concat(" on each of ", step.processes(), " processes; ")
                                     : std::string("; "),
                written(optim, "kind"), ", lr ", written(optim, "lr"), ", schedule ",
                written(*optim.find("schedule"), "kind"));
}

}  // namespace

std::vector<std::string> describe_run(const Recipe& recipe, const Task& task,
                                      const Transformer& model, const TrainStep& step,
                                      const StopLimits& limits) {
  const ModelConfig& config = recipe.model;
  const int64_t untrained = untrained_elements(model.parameters());
  const int64_t bare = model.layers_without_feed_forward();
  std::vector<std::string> lines;
  if (!recipe.point.empty()) lines.push_back(concat("point of the sweep: ", recipe.point));
  lines.insert(
      lines.end(),
      {
          task.describe(),
          concat("model: ", config.kind, ", ", config.layers, " layers",
                 bare > 0 ? concat(" (", bare, " without a feed-forward)") : "", ", width ",
                 config.width, ", ", config.heads, " heads, positions ", config.positions, ": ",
                 model.parameters().count(), " parameters",
                 untrained > 0 ? concat(", and ", untrained, " drawn values that stay") : ""),
          concat("attention: ", attention_text(*recipe.resolved.find("model"))),
          concat("loss: ", task.describe_loss()),
          describe_update(recipe, task, step),
          concat("ends at: ", limits.text()),
      });
  return lines;
}

std::string unfinished_schedule(const Recipe& recipe, const Schedule& schedule,
                                const Progress& progress, const StopLimits& limits) {
  const std::optional<int64_t> length = schedule.length();
  if (!length || progress.step >= *length) return "";
  if (recipe.train.max_steps && progress.step >= *recipe.train.max_steps) return "";
  const double share = static_cast<double>(progress.step) / static_cast<double>(*length);
  const ConfigNode& section = *recipe.resolved.find("optim")->find("schedule");
  return concat(limits.names_of_reached(progress), " ended the run at ",
                std::round(1000 * share) / 10, " % of its schedule (", written(section, "kind"),
                ", update ", progress.step, " of ", *length, "): the learning rate is still ",
                schedule.lr(progress.step), ", and would have come to ", schedule.lr(*length),
                "; for a whole schedule set optim.schedule.steps to the updates that fit");
}

}  // namespace linnet
