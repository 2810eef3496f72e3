#include "recipes/engine/language_model_task.h"

#include <chrono>
#include <utility>

#include "autograd/loss.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "data/packing.h"
#include "data/text_dataset.h"
#include "recipes/engine/memory_need.h"

namespace linnet {
namespace {

std::vector<int64_t> contexts_of(const ScoreOptions& options, int64_t training_context) {
  if (options.contexts.empty()) return {training_context};
  return options.contexts;
}

// What a model cannot be asked for, whatever the texts are.
void check_options(const Transformer& model, const ScoreOptions& options,
                   int64_t training_context) {
  as_decoder(model);
  require_usage(!options.max_tokens || *options.max_tokens >= 1,
                Cause{ErrorCode::out_of_range, "evaluate.max_tokens"},
                "the number of tokens to score must be at least 1, got ",
                options.max_tokens.value_or(0));
  if (options.carry_state) require_decode_state(model, "scoring with carried state");
  const int64_t limit = model.length_limit();
  for (const int64_t context : contexts_of(options, training_context)) {
    require_usage(context >= 1, Cause{ErrorCode::out_of_range, "evaluate.contexts"},
                  "the context must be at least 1, got ", context);
    const int64_t stride = options.stride.value_or(context);
    require_usage(1 <= stride && stride <= context,
                  Cause{ErrorCode::out_of_range, "evaluate.stride"},
                  "the stride must be 1 to the context, ", context, ": got ", stride);
    if (limit == 0 || context <= limit) continue;
    const char* key = options.contexts.empty() ? "data.context" : "evaluate.contexts";
    throw UsageError(
        {ErrorCode::out_of_range, key},
        concat("context ", context, " is longer than the model can process: ask for at most ",
               limit, " in ", key, " or --context; ", model.length_limit_reason()));
  }
}

class LanguageModelTask final : public Task {
 public:
  LanguageModelTask(const DataConfig& config, uint64_t seed,
                    std::shared_ptr<const Tokenizer> tokenizer)
      : dataset_(config, std::move(tokenizer)), seed_(seed) {}

  ModelSizes sizes() const override {
    return {dataset_.tokenizer()->vocabulary_size(), dataset_.config().context, 0};
  }
  int64_t examples_per_epoch() const override { return sampler().examples_per_epoch(); }
  int64_t tokens_per_example() const override { return dataset_.config().context; }
  Batch train_batch(int64_t first, int64_t count) const override {
    return sampler().batch(first, count);
  }
  Variable loss(const Transformer& model, const ModelInput& input,
                const Tensor& targets) const override {
    return output_cross_entropy(model.encode(input, nullptr), as_decoder(model).output_table(),
                                targets);
  }
  void check(const Transformer& model, const ScoreOptions& options) const override;
  std::vector<Score> score(const Transformer& model, const ScoreOptions& options) const override;
  std::shared_ptr<const Tokenizer> tokenizer() const override { return dataset_.tokenizer(); }
  NgramBaselines baselines(const ScoreOptions& options) const override {
    return ngram_baselines(*dataset_.split(Split::train), *dataset_.split(options.split),
                           dataset_.measure(), tokenizer()->vocabulary_size(),
                           dataset_.config().crosses_documents(), options.max_tokens.value_or(0));
  }
  std::string fingerprint(Split split) const override { return dataset_.fingerprint(split); }
  std::string describe() const override;
  std::vector<std::string> take_warnings() override;

 private:
  // Made at first use: evaluation does not need the training split.
  const LmSampler& sampler() const {
    if (!sampler_) {
      sampler_.emplace(dataset_.split(Split::train), dataset_.config().context,
                       dataset_.config().crosses_documents(), seed_);
      left_out_ = sampler_->left_out();
    }
    return *sampler_;
  }
  EvaluationSet evaluation_set(const ScoreOptions& options, int64_t context) const;
  Score score_context(const DecoderLm& model, const ScoreOptions& options, int64_t context) const;

  // Splits are read at first use, which changes nothing that a caller can see.
  mutable TextDataset dataset_;
  mutable std::optional<LmSampler> sampler_;
  mutable int64_t left_out_ = 0;  // windows, until a warning told
  uint64_t seed_;
};

EvaluationSet LanguageModelTask::evaluation_set(const ScoreOptions& options,
                                                int64_t context) const {
  EvaluationOptions windows;
  windows.context = context;
  windows.stride = options.stride.value_or(0);
  windows.carry_state = options.carry_state;
  windows.cross_documents = dataset_.config().crosses_documents();
  windows.max_tokens = options.max_tokens.value_or(0);
  return EvaluationSet(dataset_.split(options.split), dataset_.measure(), windows, options.batch);
}

Score LanguageModelTask::score_context(const DecoderLm& model, const ScoreOptions& options,
                                       int64_t context) const {
  const auto start = std::chrono::steady_clock::now();
  const EvaluationSet set = evaluation_set(options, context);
  Score score;
  score.split = name_of(options.split);
  score.scored = {context, options.carry_state ? 0 : options.stride.value_or(context),
                  options.carry_state};
  score.mode = options.carry_state ? "streaming" : options.stride ? "overlapping" : "windows";
  for (const Window& window : set.windows()) score.longest = std::max(score.longest, window.length);
  ModelState state;
  WorkProgress progress;
  for (int64_t i = 0; i < set.batches(); ++i) {
    interruption_point();
    if (i > 0 && progress.due()) {
      progress.show(score.progress_text(), static_cast<double>(score.tokens),
                    static_cast<double>(set.target_count()));
    }
    const Batch batch = set.batch(i);
    ModelInput input = model_input(batch, model.device());
    // Positions follow from the carried state's length.
    if (options.carry_state) input.positions = {};
    if (!batch.continues) state = {};
    std::optional<DeadRowCount> dead;
    if (i == 0) dead.emplace();
    const Variable hidden = model.encode(input, options.carry_state ? &state : nullptr);
    if (dead) score.dead_rows = dead->layers();
    const Tensor losses = output_token_losses(hidden.value(), model.output_table().value(),
                                              target_tensor(batch, model.device()));
    for (const double loss : losses.to_vector<double>()) score.nll_sum += loss;
    score.tokens += batch.target_count;
    score.bytes += batch.scored_bytes;
    score.words += batch.scored_words;
    if (options.carry_state) score.state_bytes = std::max(score.state_bytes, state.bytes());
  }
  score.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return score;
}

void LanguageModelTask::check(const Transformer& model, const ScoreOptions& options) const {
  const int64_t training_context = dataset_.config().context;
  check_options(model, options, training_context);
  const int64_t limit = model.length_limit();
  for (const int64_t context : contexts_of(options, training_context)) {
    const EvaluationSet set = evaluation_set(options, context);
    const auto [rows, length] = set.largest_batch();
    require_scoring_memory(model, rows, length);
    if (limit == 0 || !options.carry_state) continue;
    for (const Window& window : set.windows()) {
      if (window.first_position + window.length <= limit) continue;
      throw UsageError(
          {ErrorCode::out_of_range, "evaluate.carry_state"},
          concat("carried state would go on to position ", window.first_position + window.length,
                 " of a document, but the model has only ", limit, " positions: ",
                 model.length_limit_reason(), "; score windows instead, without carried state"));
    }
  }
}

std::vector<Score> LanguageModelTask::score(const Transformer& model,
                                            const ScoreOptions& options) const {
  check(model, options);
  const NoGrad off;
  std::vector<Score> scores;
  for (const int64_t context : contexts_of(options, dataset_.config().context)) {
    scores.push_back(score_context(as_decoder(model), options, context));
  }
  return scores;
}

std::vector<std::string> LanguageModelTask::take_warnings() {
  std::vector<std::string> warnings = dataset_.take_warnings();
  if (const int64_t left_out = std::exchange(left_out_, 0); left_out > 0) {
    warnings.push_back(concat(left_out, " of the ", left_out + sampler_->examples_per_epoch(),
                              " training windows hold only documents of one token, which predict "
                              "nothing, and are left out"));
  }
  return warnings;
}

std::string LanguageModelTask::describe() const {
  const auto corpus = dataset_.split(Split::train);
  return concat("data: ", dataset_.sources().layout, ", ", corpus->documents.size(),
                " training documents, ", corpus->size(), " tokens (", tokenizer()->kind(),
                " vocabulary of ", tokenizer()->vocabulary_size(), "), ", examples_per_epoch(),
                " windows of ", dataset_.config().context);
}

}  // namespace

std::unique_ptr<Task> make_language_model_task(const Recipe& recipe,
                                               const std::shared_ptr<const Tokenizer>& tokenizer) {
  return std::make_unique<LanguageModelTask>(recipe.data, static_cast<uint64_t>(recipe.seed),
                                             tokenizer);
}

void check_language_model(const Recipe& recipe, const Transformer& model) {
  require_listed(recipe.data, Split::train);
  check_line_ends(recipe.data);
  if (!recipe.evaluate.scores_anything()) return;
  const ScoreOptions options = score_options(recipe.evaluate);
  check_options(model, options, recipe.data.context);
  require_listed(recipe.data, options.split);
}

}  // namespace linnet
