#include "recipes/engine/classification_task.h"

#include <algorithm>
#include <cstdio>
#include <iomanip>
#include <map>
#include <span>
#include <sstream>
#include <utility>

#include "attention/layer_choice.h"
#include "attention/registry.h"
#include "autograd/loss.h"
#include "data/classification.h"
#include "recipes/engine/soundness.h"
#include "recipes/engine/train_step.h"

namespace linnet {
namespace {

// What a model cannot be asked for, whatever the examples are.
void check_classifier_options(const Transformer& model, const ScoreOptions& options) {
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

// The most likely class of a row; ties go to the lowest.
int64_t best_class(const float* logits, int64_t classes) {
  return std::max_element(logits, logits + classes) - logits;
}

void add_metrics(const Score& score, EvaluationMetrics& line) {
  line.accuracy = score.accuracy();
  if (score.two_classes()) line.more.set("f1", score.f1()).set("matthews", score.matthews());
  line.more.set("scored_examples", score.tokens);
}

std::string text(const Score& score) {
  std::ostringstream out;
  out << std::fixed << score.split << std::setprecision(2) << ": accuracy "
      << 100 * score.accuracy() << " % of " << score.tokens << " examples" << std::setprecision(4);
  if (score.two_classes()) out << ", F1 " << score.f1() << ", Matthews " << score.matthews();
  out << ", loss " << score.nll() << score.dead_text();
  return out.str();
}

std::string progress_text(const Score& score) {
  char accuracy[32];
  std::snprintf(accuracy, sizeof(accuracy), "%.2f", 100 * score.accuracy());
  return concat("evaluating ", score.split, ": ", score.tokens, " examples, accuracy ", accuracy,
                " %");
}

bool has_like_lengths(const DataConfig& data) {
  const auto* option = data.options.find<LengthsOption>();
  return option != nullptr && option->lengths == "like";
}

// Throws UsageError where rows are padded to other lengths than data.context and the model's output
// depends on that.
void check_lengths(const Recipe& recipe) {
  if (!has_like_lengths(recipe.data)) return;
  const ModelConfig& model = recipe.model;
  const Cause cause{ErrorCode::conflict, "data.lengths"};
  require_usage(model.pooling == "cls" || !model.mean_by_length, cause,
                "data.lengths like pads batches to different lengths, and model.mean_by_length "
                "divides by these: set data.lengths=full or model.mean_by_length=false");
  for (LayerChoice& choice : layer_choices(model.attention, model.layers)) {
    const std::string name = choice.attention.find("name")->raw();
    choice.attention.erase("name");
    require_usage(!find_mechanism(name).traits_of(choice.attention).depends_on_length, cause,
                  "data.lengths like pads batches to different lengths, and with these options the "
                  "outputs of attention '",
                  name, "' depend on the padded length: set data.lengths=full");
  }
}

constexpr ScoreForm kScoreForm{"examples", add_metrics, text, progress_text};

class ClassificationTask final : public Task {
 public:
  explicit ClassificationTask(const Recipe& recipe)
      : data_(load_classification(recipe.data)),
        length_(recipe.data.context),
        like_(has_like_lengths(recipe.data)) {
    // Whole updates: cutting one into other micro-batches then leaves its examples the same.
    const int64_t tokens = length_ * data_.rows_per_example();
    const int64_t together = like_ ? examples_per_update(recipe.train, tokens) : 0;
    const int32_t cls = recipe.model.pooling == "cls" ? data_.cls_id() : -1;
    const auto seed = static_cast<uint64_t>(recipe.seed);
    for (const Split split : kSplits) {
      if (!data_.has(split)) continue;
      samplers_.emplace(split,
                        ClassificationSampler(data_.split(split), length_, cls, seed, together));
    }
  }

  TaskKind kind() const override { return TaskKind::classification; }
  ModelSizes sizes() const override {
    return {data_.vocabulary_size, length_, data_.classes, data_.rows_per_example()};
  }
  int64_t examples_per_epoch() const override { return sampler(Split::train).examples_per_epoch(); }
  int64_t tokens_per_example() const override { return length_ * data_.rows_per_example(); }
  Batch train_batch(int64_t first, int64_t count) const override {
    return sampler(Split::train).batch(first, count);
  }
  Variable loss(const Transformer& model, const DeviceBatch& batch) const override {
    return cross_entropy(as_classifier(model).logits(batch.input), batch.array("labels"));
  }
  std::string describe_loss() const override { return "cross-entropy of the class, in nats"; }
  bool is_sound(double loss) const override { return is_sound_loss(loss, data_.classes); }
  void check_options(const Transformer& model, const ScoreOptions& options) const override {
    check_classifier_options(model, options);
  }
  std::vector<int64_t> scored_lengths(const ScoreOptions&) const override { return {0}; }
  ScoringSet scoring_set(const ScoreOptions& options, int64_t length) const override;
  void count(const Transformer& model, const Batch& batch, const DeviceBatch& on_device,
             ModelState* state, Counts& counts) const override;
  std::shared_ptr<const Tokenizer> tokenizer() const override { return nullptr; }
  NgramBaselines baselines(const ScoreOptions&) const override {
    throw UsageError(Cause{ErrorCode::conflict, "--baselines"},
                     "n-gram baselines are for language models; this is a classifier");
  }
  std::string fingerprint(Split split) const override { return data_.fingerprint(split); }
  std::string describe() const override {
    return concat("data: ", data_.layout, ", ", examples_per_epoch(), " training examples",
                  data_.rows_per_example() == 2 ? " of two rows" : "", ", ", data_.classes,
                  " classes, padded to ", like_ ? "the longest row of a batch, at most " : "",
                  length_);
  }
  std::vector<std::string> take_warnings() override { return std::exchange(data_.notes, {}); }

 private:
  const ClassificationSampler& sampler(Split split) const {
    data_.split(split);
    return samplers_.at(split);
  }

  ClassificationDataset data_;
  int64_t length_;
  bool like_;  // lengths of a batch
  std::map<Split, ClassificationSampler> samplers_;
};

ScoringSet ClassificationTask::scoring_set(const ScoreOptions& options, int64_t) const {
  const ClassificationSampler& examples = sampler(options.split);
  const int64_t most = examples.examples_per_epoch(), at_once = options.batch;
  ScoringSet set;
  set.score.form = &kScoreForm;
  set.score.split = name_of(options.split);
  set.targets = std::min(most, options.max_tokens.value_or(most));
  set.batches = (set.targets - 1) / at_once + 1;
  set.rows = std::min(at_once, most);
  set.length = tokens_per_example();
  set.batch = [&examples, at_once, order = examples.scoring_order(set.targets)](int64_t index) {
    const int64_t first = index * at_once;
    const int64_t rows = std::min(at_once, std::ssize(order) - first);
    return examples.batch_of(
        std::span(order).subspan(static_cast<size_t>(first), static_cast<size_t>(rows)));
  };
  return set;
}

void ClassificationTask::count(const Transformer& model, const Batch& batch,
                               const DeviceBatch& on_device, ModelState*, Counts& counts) const {
  const Variable logits = as_classifier(model).logits(on_device.input);
  const std::vector<float> values = logits.value().to_vector<float>();
  const int64_t classes = logits.size(1);
  counts.confusion.resize(static_cast<size_t>(classes * classes));
  for (size_t i = 0; i < batch.labels.size(); ++i) {
    const float* row = values.data() + static_cast<int64_t>(i) * classes;
    const int64_t label = batch.labels[i], best = best_class(row, classes);
    counts.correct += best == label ? 1 : 0;
    ++counts.confusion[static_cast<size_t>(label * classes + best)];
  }
  counts.nll_sum += cross_entropy(logits, on_device.array("labels")).value().item();
  counts.tokens += batch.target_count;
}

}  // namespace

const ScoreForm& classification_form() {
  return kScoreForm;
}

std::unique_ptr<Task> make_classification_task(const Recipe& recipe,
                                               const std::shared_ptr<const Tokenizer>&) {
  check_lengths(recipe);
  return std::make_unique<ClassificationTask>(recipe);
}

void check_classification(const Recipe& recipe, const Transformer& model) {
  check_lengths(recipe);
  if (recipe.evaluate.scores_anything())
    check_classifier_options(model, score_options(recipe.evaluate));
}

}  // namespace linnet
