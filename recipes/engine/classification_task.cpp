#include "recipes/engine/classification_task.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <iomanip>
#include <map>
#include <span>
#include <sstream>
#include <utility>

#include "attention/layer_choice.h"
#include "attention/registry.h"
#include "autograd/arithmetic.h"
#include "autograd/loss.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "data/classification.h"
#include "layers/attention_sections.h"
#include "recipes/engine/soundness.h"
#include "recipes/engine/train_step.h"

namespace linnet {
namespace {

// What a model cannot be asked for, whatever the examples are.
void check_classifier_options(const Transformer& model, const ScoreOptions& options) {
  model.example_head();
  require_whole(options, "examples");
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
  for (const AttentionSection& section : attention_sections(model)) {
    for (LayerChoice& choice : layer_choices(*section.node, section.layers)) {
      const std::string name = choice.attention.find("name")->raw();
      choice.attention.erase("name");
      require_usage(!find_mechanism(name).traits_of(choice.attention).depends_on_length, cause,
                    "data.lengths like pads batches to different lengths, and with these options "
                    "the outputs of attention '",
                    name, "' depend on the padded length: set data.lengths=full");
    }
  }
}

constexpr ScoreForm kScoreForm{"examples", add_metrics, text, progress_text};

void add_value_metrics(const Score& score, EvaluationMetrics& line) {
  line.more.set("pearson", score.pearson())
      .set("spearman", score.spearman())
      .set("scored_examples", score.tokens);
}

std::string value_text(const Score& score) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(4) << score.split << ": Pearson " << score.pearson()
      << ", Spearman " << score.spearman() << " of " << score.tokens
      << " examples, mean squared error " << score.nll() << score.dead_text();
  return out.str();
}

std::string value_progress_text(const Score& score) {
  return concat("evaluating ", score.split, ": ", score.tokens, " examples");
}

constexpr ScoreForm kValueForm{"examples", add_value_metrics, value_text, value_progress_text};

// Of finite weights a mean squared error: at most four times that of predicting 0.
double ruined_error(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  return 4 * std::max(squares / static_cast<double>(values.size()), 1.0);
}

class ClassificationTask final : public Task {
 public:
  ClassificationTask(const Recipe& recipe, const std::shared_ptr<const Tokenizer>& tokenizer)
      : data_(load_classification(recipe.data, tokenizer)),
        length_(recipe.data.context),
        like_(has_like_lengths(recipe.data)) {
    // Whole updates: cutting one into other micro-batches then leaves its examples the same.
    const int64_t tokens = length_ * data_.rows_per_example();
    const int64_t together = like_ ? examples_per_update(recipe.train, tokens) : 0;
    require_usage(
        !recipe.model.reads_first_token() || data_.tokenizer == nullptr ||
            data_.tokenizer->pair_style() != PairStyle::t5,
        Cause{ErrorCode::conflict, "model.head"},
        "the model reads the first token of a row, and this tokenizer puts none before a "
        "text: set model.kind=encoder_decoder, or model.head=lra with model.pooling=mean");
    const bool adds_cls = recipe.model.reads_first_token() && !data_.begins_with_cls;
    const int32_t cls = adds_cls ? data_.cls_id() : -1;
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
    return loss_of(model.example_logits(batch.input), batch);
  }
  std::string describe_loss() const override {
    return data_.regression ? "squared error of the value" : "cross-entropy of the class, in nats";
  }
  bool is_sound(double loss) const override {
    if (!data_.regression) return is_sound_loss(loss, data_.classes);
    return data_.has(Split::train) ? loss <= ruined_error(data_.split(Split::train)->values)
                                   : std::isfinite(loss);
  }
  void check_fits(const Recipe& recipe) const override {
    require_usage(recipe.model.token_types >= 2 || !has_types(),
                  Cause{ErrorCode::conflict, "model.token_types"},
                  "the data mark which text of a pair each token is of, and the model has no table "
                  "for that: set model.token_types=2");
    require_usage(recipe.checkpoint.best != "accuracy" || !data_.regression,
                  Cause{ErrorCode::conflict, "checkpoint.best"},
                  "the data have values to predict and no classes, so no accuracy: set "
                  "checkpoint.best=nll, the mean squared error");
  }
  void check_options(const Transformer& model, const ScoreOptions& options) const override {
    check_classifier_options(model, options);
  }
  ScoringSet scoring_set(const ScoreOptions& options, const ScoringProtocol&) const override;
  void count(const Transformer& model, const Batch& batch, const DeviceBatch& on_device,
             ModelState* state, Counts& counts) const override;
  std::vector<Prediction> predict(const Transformer& model,
                                  const ScoreOptions& options) const override;
  bool is_labelled(Split split) const override {
    const std::vector<int32_t>& labels = data_.split(split)->labels;
    return std::count(labels.begin(), labels.end(), kUnlabelled) == 0;
  }
  std::shared_ptr<const Tokenizer> tokenizer() const override { return data_.tokenizer; }
  std::vector<std::string> class_names() const override { return data_.class_names; }
  std::vector<Baseline> baselines(const ScoreOptions&) const override {
    throw UsageError(Cause{ErrorCode::conflict, "--baselines"},
                     "n-gram baselines are for language models; this is a classifier");
  }
  std::string fingerprint(Split split) const override { return data_.fingerprint(split); }
  std::string describe() const override {
    return concat("data: ", data_.layout, ", ", examples_per_epoch(), " training examples",
                  data_.rows_per_example() == 2 ? " of two rows" : "", ", ",
                  data_.regression ? concat("a value each") : concat(data_.classes, " classes"),
                  ", padded to ", like_ ? "the longest row of a batch, at most " : "", length_);
  }
  std::vector<std::string> take_warnings() override { return std::exchange(data_.notes, {}); }

 private:
  bool has_types() const {
    return std::any_of(kSplits.begin(), kSplits.end(), [this](Split split) {
      return data_.has(split) && !data_.split(split)->types.empty();
    });
  }
  // Summed over the batch.
  Variable loss_of(const Variable& logits, const DeviceBatch& batch) const {
    if (!data_.regression) return cross_entropy(logits, batch.array("labels"));
    const Variable values(batch.array("values"));
    const Variable error =
        subtract(cast(reshape(logits, values.value().shape()), DType::f32), values);
    return sum_all(multiply(error, error));
  }
  const ClassificationSampler& sampler(Split split) const {
    data_.split(split);
    return samplers_.at(split);
  }

  ClassificationDataset data_;
  int64_t length_;
  bool like_;  // lengths of a batch
  std::map<Split, ClassificationSampler> samplers_;
};

ScoringSet ClassificationTask::scoring_set(const ScoreOptions& options,
                                           const ScoringProtocol&) const {
  const ClassificationSampler& examples = sampler(options.split);
  require_usage(is_labelled(options.split), Cause{ErrorCode::conflict, "evaluate.split"}, "the ",
                name_of(options.split),
                " split has no labels to score against; score another one, or write what the model "
                "says of it with evaluate --predictions FILE");
  const int64_t most = examples.examples_per_epoch(), at_once = options.batch;
  ScoringSet set;
  set.score.form = data_.regression ? &kValueForm : &kScoreForm;
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
  const Variable logits = model.example_logits(on_device.input);
  const std::vector<float> values = logits.value().to_vector<float>();
  counts.nll_sum += loss_of(logits, on_device).value().item();
  counts.tokens += batch.target_count;
  if (data_.regression) {
    for (size_t i = 0; i < batch.values.size(); ++i)
      counts.values.emplace_back(values[i], batch.values[i]);
    return;
  }
  const int64_t classes = logits.size(1);
  counts.confusion.resize(static_cast<size_t>(classes * classes));
  for (size_t i = 0; i < batch.labels.size(); ++i) {
    const float* row = values.data() + static_cast<int64_t>(i) * classes;
    const int64_t label = batch.labels[i], best = best_class(row, classes);
    counts.correct += best == label ? 1 : 0;
    ++counts.confusion[static_cast<size_t>(label * classes + best)];
  }
}

std::vector<Prediction> ClassificationTask::predict(const Transformer& model,
                                                    const ScoreOptions& options) const {
  check_classifier_options(model, options);
  const ClassificationSampler& examples = sampler(options.split);
  const std::vector<int64_t>& rows = data_.split(options.split)->rows;
  const NoGrad off;
  WorkProgress progress;
  std::vector<Prediction> predictions;
  const int64_t count = examples.examples_per_epoch();
  for (int64_t first = 0; first < count; first += options.batch) {
    interruption_point();
    const Batch batch = examples.in_order(first, options.batch);
    const Variable logits = model.example_logits(DeviceBatch(batch, model.device()).input);
    const std::vector<float> values = logits.value().to_vector<float>();
    for (int64_t i = 0; i < batch.target_count; ++i) {
      const int64_t example = first + i;
      const float* row = values.data() + i * data_.classes;
      std::string said;
      if (data_.regression) {
        std::array<char, 32> buffer{};
        std::snprintf(buffer.data(), buffer.size(), "%.3f", static_cast<double>(*row));
        said = buffer.data();
      } else {
        const auto best = static_cast<size_t>(best_class(row, data_.classes));
        said = data_.class_names.empty() ? std::to_string(best) : data_.class_names[best];
      }
      predictions.push_back(
          {rows.empty() ? example : rows[static_cast<size_t>(example)], std::move(said)});
    }
    if (progress.due())
      progress.show(concat("predicting ", name_of(options.split)), static_cast<double>(first),
                    static_cast<double>(count));
  }
  return predictions;
}

}  // namespace

const ScoreForm& classification_form() {
  return kScoreForm;
}

std::unique_ptr<Task> make_classification_task(const Recipe& recipe,
                                               const std::shared_ptr<const Tokenizer>& tokenizer) {
  check_lengths(recipe);
  return std::make_unique<ClassificationTask>(recipe, tokenizer);
}

void check_classification(const Recipe& recipe, const Transformer& model) {
  check_lengths(recipe);
  for (const ScoreOptions& options : scored_by_run(recipe.evaluate)) {
    check_classifier_options(model, options);
  }
}

}  // namespace linnet
