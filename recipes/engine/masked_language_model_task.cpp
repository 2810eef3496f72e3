#include "recipes/engine/masked_language_model_task.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "autograd/arithmetic.h"
#include "autograd/indexing.h"
#include "core/interrupt.h"
#include "data/masked_rows.h"
#include "data/ngram.h"
#include "data/text_dataset.h"
#include "recipes/engine/soundness.h"

namespace linnet {
namespace {

void check_options_of(const Transformer& model, const ScoreOptions& options) {
  model.token_head();
  require_whole(options, "rows of texts");
}

std::string fixed(double value, const char* format) {
  char text[32];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

void add_metrics(const Score& score, EvaluationMetrics& line) {
  line.perplexity = score.perplexity();
  line.more.set("scored_tokens", score.tokens);
}

std::string text(const Score& score) {
  return concat(score.split, ": masked perplexity ", fixed(score.perplexity(), "%.3f"), " of ",
                score.tokens, " masked tokens in ", fixed(score.seconds, "%.1f"), " s",
                score.dead_text());
}

std::string progress_text(const Score& score) {
  return concat("evaluating ", score.split, ": ", score.tokens, " masked tokens, perplexity ",
                fixed(score.perplexity(), "%.3f"));
}

constexpr ScoreForm kScoreForm{"tokens", add_metrics, text, progress_text};

class MaskedLanguageModelTask final : public Task {
 public:
  MaskedLanguageModelTask(const Recipe& recipe, std::shared_ptr<const Tokenizer> tokenizer)
      : dataset_(recipe.data, std::move(tokenizer)),
        masking_(*dataset_.tokenizer(), *recipe.task),
        seed_(static_cast<uint64_t>(recipe.seed)) {}

  TaskKind kind() const override { return TaskKind::masked_language_model; }
  ModelSizes sizes() const override {
    return {dataset_.tokenizer()->vocabulary_size(), dataset_.config().context, 0};
  }
  int64_t examples_per_epoch() const override { return training_rows().whole_rows(); }
  int64_t tokens_per_example() const override { return dataset_.config().context; }
  Batch train_batch(int64_t first, int64_t count) const override {
    return training_rows().training_batch(seed_, first, count);
  }
  // Of the masked tokens alone: the others never meet the head and its table.
  Variable loss(const Transformer& model, const DeviceBatch& batch) const override {
    return model.token_head().loss(masked_vectors(model, batch), batch.array("targets"));
  }
  std::string describe_loss() const override {
    return "cross-entropy of the masked tokens, in nats";
  }
  bool is_sound(double loss) const override { return is_sound_loss(loss, sizes().vocabulary); }
  void check_options(const Transformer& model, const ScoreOptions& options) const override {
    check_options_of(model, options);
  }
  ScoringSet scoring_set(const ScoreOptions& options, const ScoringProtocol&) const override;
  void count(const Transformer& model, const Batch& batch, const DeviceBatch& on_device,
             ModelState* state, Counts& counts) const override;
  std::shared_ptr<const Tokenizer> tokenizer() const override { return dataset_.tokenizer(); }
  std::vector<Baseline> baselines(const ScoreOptions& options) const override;
  std::string fingerprint(Split split) const override { return dataset_.fingerprint(split); }
  std::string describe() const override;
  std::vector<std::string> take_warnings() override { return dataset_.take_warnings(); }

 private:
  MaskedRows rows_of(Split split) const {
    return {dataset_.split(split), *dataset_.tokenizer(), masking_, dataset_.config().context};
  }
  // Made at first use: evaluation does not need the training split.
  const MaskedRows& training_rows() const;
  // Vectors of the masked tokens, [C, E].
  static Variable masked_vectors(const Transformer& model, const DeviceBatch& batch) {
    const Variable x = model.encode(batch.input, nullptr);
    return gather(reshape(x, {x.size(0) * x.size(1), x.size(2)}), batch.array("places"),
                  batch.array("place_of"));
  }

  // Splits are read at first use, which changes nothing that a caller can see.
  mutable TextDataset dataset_;
  mutable std::optional<MaskedRows> training_rows_;
  Masking masking_;
  uint64_t seed_;
};

const MaskedRows& MaskedLanguageModelTask::training_rows() const {
  if (!training_rows_) {
    MaskedRows rows = rows_of(Split::train);
    const int64_t context = dataset_.config().context;
    require_usage(rows.whole_rows() > 0, Cause{ErrorCode::out_of_range, "data.context"},
                  "the training split has ", dataset_.split(Split::train)->size(),
                  " tokens, which is not one row of ", context, "; lower data.context or add text");
    training_rows_.emplace(std::move(rows));
  }
  return *training_rows_;
}

ScoringSet MaskedLanguageModelTask::scoring_set(const ScoreOptions& options,
                                                const ScoringProtocol&) const {
  const auto rows = std::make_shared<const MaskedRows>(rows_of(options.split));
  // Whole rows, as few as hold evaluate.max_tokens masked tokens.
  int64_t count = 0, targets = 0;
  for (; count < rows->scored_rows() && (!options.max_tokens || targets < *options.max_tokens);
       ++count) {
    interruption_point();
    targets += rows->scoring_batch(count, 1).target_count;
  }
  require_usage(targets > 0, Cause{ErrorCode::out_of_range}, "there is nothing to evaluate: the ",
                name_of(options.split), " split holds special tokens only; add text");
  // The last row may be shorter, and is a batch of its own then.
  const int64_t at_once = options.batch;
  const bool tail = rows->length_of(count - 1) < rows->length_of(0);
  const int64_t whole = count - (tail ? 1 : 0), batches = (whole + at_once - 1) / at_once;
  ScoringSet set;
  set.score.form = &kScoreForm;
  set.score.split = name_of(options.split);
  set.targets = targets;
  set.batches = batches + (tail ? 1 : 0);
  set.rows = std::min(at_once, std::max<int64_t>(whole, 1));
  set.length = rows->length_of(0);
  set.batch = [rows, whole, batches, at_once](int64_t index) {
    const int64_t first = index * at_once;
    return index == batches ? rows->scoring_batch(whole, 1)
                            : rows->scoring_batch(first, std::min(at_once, whole - first));
  };
  return set;
}

void MaskedLanguageModelTask::count(const Transformer& model, const Batch& batch,
                                    const DeviceBatch& on_device, ModelState*,
                                    Counts& counts) const {
  const Variable vectors = masked_vectors(model, on_device);
  const Tensor losses = model.token_head().losses(vectors.value(), on_device.array("targets"));
  for (const double loss : losses.to_vector<double>()) counts.nll_sum += loss;
  counts.tokens += batch.target_count;
}

std::vector<Baseline> MaskedLanguageModelTask::baselines(const ScoreOptions& options) const {
  const UnigramModel unigram(*dataset_.split(Split::train), tokenizer()->vocabulary_size());
  const ScoringSet set = scoring_set(options, {});
  double nll = 0;
  for (int64_t i = 0; i < set.batches; ++i) {
    for (const int32_t token : set.batch(i).targets) {
      if (token != kNotScored) nll -= std::log(unigram.probability(token));
    }
  }
  return {{"unigram", std::exp(nll / static_cast<double>(set.targets)), std::nullopt}};
}

std::string MaskedLanguageModelTask::describe() const {
  const auto corpus = dataset_.split(Split::train);
  return concat("data: ", dataset_.sources().layout, ", ", corpus->documents.size(),
                " training documents, ", corpus->size(), " tokens (", tokenizer()->kind(),
                " vocabulary of ", tokenizer()->vocabulary_size(), "), ", examples_per_epoch(),
                " rows of ", dataset_.config().context);
}

}  // namespace

std::unique_ptr<Task> make_masked_language_model_task(
    const Recipe& recipe, const std::shared_ptr<const Tokenizer>& tokenizer) {
  return std::make_unique<MaskedLanguageModelTask>(recipe, tokenizer);
}

void check_masked_language_model(const Recipe& recipe, const Transformer& model) {
  require_usage(recipe.data.text().cross_documents.value_or(true),
                Cause{ErrorCode::conflict, "data.cross_documents"},
                "task.kind masked_language_model packs its rows from one stream of all documents: "
                "leave data.cross_documents out");
  require_listed(recipe.data, Split::train);
  check_line_ends(recipe.data);
  for (const ScoreOptions& options : scored_by_run(recipe.evaluate)) {
    check_options_of(model, options);
    require_listed(recipe.data, options.split);
  }
}

}  // namespace linnet
