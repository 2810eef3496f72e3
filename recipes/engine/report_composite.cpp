#include "recipes/engine/report_composite.h"

#include <algorithm>

#include "recipes/engine/report_claims.h"
#include "recipes/engine/report_figure.h"
#include "recipes/engine/report_formulas.h"

namespace linnet {
namespace {

constexpr size_t kMinModels = 3;  // of two models the deviation says how far they are apart alone

struct Candidate {
  const ComparedCell* accuracy;
  double speed = 0, memory = 0;
  bool softmax = false;
};

// "" where the run recorded none.
std::string machine_of(const RunData& run) {
  const JsonValue* machine =
      run.environment.is_object() ? run.environment.find("machine") : nullptr;
  std::string text;
  const auto add = [&text](const JsonValue* object, const char* key) {
    const JsonValue* value = object != nullptr && object->is_object() ? object->find(key) : nullptr;
    text += value == nullptr ? "" : value->dump();
  };
  for (const char* key : {"cpu", "threads"}) add(machine, key);
  for (const char* key : {"device", "processes"}) add(&run.environment, key);
  return text;
}

bool is_softmax(const RunData& run) {
  const ConfigNode* model = run.settings.is_map() ? run.settings.find("model") : nullptr;
  const ConfigNode* attention =
      model != nullptr && model->is_map() ? model->find("attention") : nullptr;
  const ConfigNode* name =
      attention != nullptr && attention->is_map() ? attention->find("name") : nullptr;
  return name != nullptr && name->is_scalar() && name->raw() == "softmax";
}

bool on_one_machine(const std::vector<MeasuredModel>& models) {
  const RunData& first = *models.front().runs.front();
  return std::all_of(models.begin(), models.end(), [&](const MeasuredModel& model) {
    return std::all_of(model.runs.begin(), model.runs.end(), [&](const RunData* run) {
      return machine_of(*run) == machine_of(first) && protocol_difference(*run, first).empty();
    });
  });
}

std::optional<Candidate> candidate(const MeasuredModel& model, const ComparedCell& accuracy) {
  std::vector<double> speeds, memories;
  for (const RunData* run : model.runs) {
    const std::optional<double> speed = training_speed(*run);
    if (!speed || !(*speed > 0) || peak_memory(*run) == 0) return std::nullopt;
    speeds.push_back(*speed);
    memories.push_back(static_cast<double>(peak_memory(*run)));
  }
  return Candidate{&accuracy, *mean_of(speeds), *mean_of(memories),
                   is_softmax(*model.runs.front())};
}

// Of the accuracies with that setting.
std::vector<Candidate> candidates(const std::vector<ComparedCell>& cells,
                                  const std::vector<MeasuredModel>& models,
                                  const std::string& setting) {
  std::vector<Candidate> found;
  for (const ComparedCell& cell : cells) {
    if (cell.metric != "accuracy" || cell.setting != setting || !cell.mean) continue;
    for (const MeasuredModel& model : models) {
      if (model.label != cell.model) continue;
      if (const auto one = candidate(model, cell)) found.push_back(*one);
    }
  }
  return found;
}

// RCP, and RCP with memory, of each of the candidates.
std::vector<ComparedCell> composites(const std::vector<Candidate>& all) {
  std::vector<ComparedCell> made;
  const auto softmax =
      std::find_if(all.begin(), all.end(), [](const Candidate& each) { return each.softmax; });
  if (softmax == all.end() || all.size() < kMinModels) return made;
  CompositeInput input;
  std::vector<double> accuracies;
  for (const Candidate& each : all) accuracies.push_back(*each.accuracy->mean);
  input.deviation = *sample_deviation(accuracies);
  input.softmax_speed = softmax->speed;
  input.softmax_accuracy = *softmax->accuracy->mean;
  if (!(input.deviation > 0)) return made;
  for (const Candidate& each : all) {
    input.speed = each.speed;
    input.accuracy = *each.accuracy->mean;
    const auto add = [&](const char* metric, const std::optional<double>& value) {
      ComparedCell& cell = made.emplace_back();
      cell.model = each.accuracy->model;
      cell.setting = each.accuracy->setting;
      cell.metric = metric;
      cell.mean = value;
      if (value)
        cell.count = each.accuracy->count;
      else
        ++cell.without["a deviation above softmax"];
    };
    add("rcp", composite_performance(input));
    add("rcp_mem", composite_performance(input, softmax->memory / each.memory));
  }
  return made;
}

}  // namespace

void add_composites(std::vector<ComparedCell>& cells, const std::vector<MeasuredModel>& models) {
  if (models.size() < kMinModels || !on_one_machine(models)) return;
  std::vector<std::string> settings;
  for (const ComparedCell& cell : cells) {
    if (std::count(settings.begin(), settings.end(), cell.setting) == 0)
      settings.push_back(cell.setting);
  }
  std::vector<ComparedCell> made;
  for (const std::string& setting : settings) {
    for (ComparedCell& cell : composites(candidates(cells, models, setting)))
      made.push_back(std::move(cell));
  }
  for (ComparedCell& cell : made) cells.push_back(std::move(cell));
}

}  // namespace linnet
