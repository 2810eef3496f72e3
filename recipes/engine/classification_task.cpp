#include "recipes/engine/classification_task.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "autograd/loss.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "data/classification.h"
#include "recipes/engine/memory_need.h"

namespace linnet {
namespace {

class ClassificationTask final : public Task {
 public:
  // `cls`: a CLS token goes before each example, and its vector is what the model classifies.
  ClassificationTask(const DataConfig& config, bool cls, uint64_t seed)
      : data_(load_classification(config)), length_(config.context) {
    for (const Split split : kSplits) {
      if (!data_.has(split)) continue;
      samplers_.emplace(split, ClassificationSampler(data_.split(split), length_,
                                                     cls ? data_.cls_id() : -1, seed));
    }
  }

  ModelSizes sizes() const override { return {data_.vocabulary_size, length_, data_.classes}; }
  int64_t examples_per_epoch() const override { return sampler(Split::train).examples_per_epoch(); }
  int64_t tokens_per_example() const override { return length_; }
  Batch train_batch(int64_t first, int64_t count) const override {
    return sampler(Split::train).batch(first, count);
  }
  Variable loss(const Transformer& model, const ModelInput& input,
                const Tensor& targets) const override {
    return cross_entropy(as_classifier(model).logits(input), targets);
  }
  void check(const Transformer& model, const ScoreOptions& options) const override;
  std::vector<Score> score(const Transformer& model, const ScoreOptions& options) const override;
  std::shared_ptr<const Tokenizer> tokenizer() const override { return nullptr; }
  NgramBaselines baselines(const ScoreOptions&) const override {
    throw UsageError(Cause{ErrorCode::conflict, "--baselines"},
                     "n-gram baselines are for language models; this is a classifier");
  }
  std::string fingerprint(Split split) const override { return data_.fingerprint(split); }
  std::string describe() const override {
    return concat("data: ", data_.layout, ", ", examples_per_epoch(), " training examples, ",
                  data_.classes, " classes, padded to ", length_);
  }
  std::vector<std::string> take_warnings() override { return {}; }

 private:
  const ClassificationSampler& sampler(Split split) const {
    data_.split(split);
    return samplers_.at(split);
  }

  ClassificationDataset data_;
  int64_t length_;
  std::map<Split, ClassificationSampler> samplers_;
};

// The most likely class of a row; ties go to the lowest.
int64_t best_class(const float* logits, int64_t classes) {
  return std::max_element(logits, logits + classes) - logits;
}

// What a model cannot be asked for, whatever the examples are.
void check_options(const Transformer& model, const ScoreOptions& options) {
  as_classifier(model);
  require_usage(options.contexts.empty() && !options.stride && !options.carry_state,
                Cause{ErrorCode::conflict, "evaluate.contexts"},
                "contexts, stride and carried state are for language models; this is a classifier");
  require_usage(options.batch >= 1, Cause{ErrorCode::out_of_range, "evaluate.batch"},
                "examples scored together must be at least 1, got ", options.batch);
  require_usage(!options.max_tokens || *options.max_tokens >= 1,
                Cause{ErrorCode::out_of_range, "evaluate.max_tokens"},
                "the number of examples to score must be at least 1, got ",
                options.max_tokens.value_or(0));
}

void ClassificationTask::check(const Transformer& model, const ScoreOptions& options) const {
  check_options(model, options);
  const ClassificationSampler& examples = sampler(options.split);
  require_scoring_memory(model, std::min(options.batch, examples.examples_per_epoch()), length_);
}

std::vector<Score> ClassificationTask::score(const Transformer& model,
                                             const ScoreOptions& options) const {
  check(model, options);
  const auto start = std::chrono::steady_clock::now();
  const EncoderClassifier& classifier = as_classifier(model);
  const ClassificationSampler& examples = sampler(options.split);
  const int64_t count = std::min(examples.examples_per_epoch(),
                                 options.max_tokens.value_or(examples.examples_per_epoch()));
  const NoGrad off;
  Score score;
  score.split = name_of(options.split);
  score.mode = "classification";
  WorkProgress progress;
  for (int64_t first = 0; first < count; first += options.batch) {
    interruption_point();
    if (first > 0 && progress.due()) {
      progress.show(score.progress_text(), static_cast<double>(first), static_cast<double>(count));
    }
    const Batch batch = examples.in_order(first, std::min(options.batch, count - first));
    std::optional<DeadRowCount> dead;
    if (first == 0) dead.emplace();
    const Variable logits = classifier.logits(model_input(batch, model.device()));
    if (dead) score.dead_rows = dead->layers();
    const std::vector<float> values = logits.value().to_vector<float>();
    for (int64_t row = 0; row < batch.B; ++row) {
      const float* line = values.data() + row * classifier.classes();
      score.correct +=
          best_class(line, classifier.classes()) == batch.labels[static_cast<size_t>(row)] ? 1 : 0;
    }
    score.nll_sum += cross_entropy(logits, target_tensor(batch, model.device())).value().item();
    score.tokens += batch.B;
  }
  score.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {score};
}

}  // namespace

std::unique_ptr<Task> make_classification_task(const Recipe& recipe,
                                               const std::shared_ptr<const Tokenizer>&) {
  return std::make_unique<ClassificationTask>(recipe.data, recipe.model.pooling == "cls",
                                              static_cast<uint64_t>(recipe.seed));
}

void check_classification(const Recipe& recipe, const Transformer& model) {
  if (recipe.evaluate.scores_anything()) check_options(model, score_options(recipe.evaluate));
}

}  // namespace linnet
