#include "recipes/engine/language_model_task.h"

#include <algorithm>
#include <cstdio>
#include <iomanip>
#include <sstream>
#include <tuple>
#include <utility>

#include "autograd/loss.h"
#include "data/ngram.h"
#include "data/packing.h"
#include "data/text_dataset.h"
#include "recipes/engine/batch_bands.h"
#include "recipes/engine/soundness.h"

namespace linnet {
namespace {

// What a model cannot be asked for, whatever the texts are.
void check_decoder_options(const Transformer& model, const ScoreOptions& options,
                           int64_t training_context) {
  model.token_head();
  require_usage(!options.max_tokens || *options.max_tokens >= 1,
                Cause{ErrorCode::out_of_range, "evaluate.max_tokens"},
                "the number of tokens to score must be at least 1, got ",
                options.max_tokens.value_or(0));
  const int64_t limit = model.length_limit();
  for (const ScoringProtocol& protocol : options.protocols) {
    if (protocol.carry_state) require_decode_state(model, "scoring with carried state");
    const int64_t context = protocol.context.value_or(training_context);
    const char* key = !protocol.context ? "data.context"
                      : options.listed  ? "evaluate.protocols"
                                        : "evaluate.contexts";
    require_usage(context >= 1, Cause{ErrorCode::out_of_range, key},
                  "the context must be at least 1, got ", context);
    const int64_t stride = protocol.stride.value_or(context);
    require_usage(
        1 <= stride && stride <= context,
        Cause{ErrorCode::out_of_range, options.listed ? "evaluate.protocols" : "evaluate.stride"},
        "the stride must be 1 to the context, ", context, ": got ", stride);
    if (limit == 0 || context <= limit) continue;
    throw UsageError(
        {ErrorCode::out_of_range, key},
        concat("context ", context, " is longer than the model can process: ask for at most ",
               limit, " in ", key, " or --context; ", model.length_limit_reason()));
  }
}

// Three decimals, or powers of ten for the word perplexities of untrained models.
std::string readable(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), value < 1e6 ? "%.3f" : "%.3e", value);
  return text;
}

void add_metrics(const Score& score, EvaluationMetrics& line) {
  line.perplexity = score.perplexity();
  if (score.bytes > 0) line.bits_per_byte = score.bits_per_byte();
  line.more.set("mode", score.mode).set("scored_tokens", score.tokens);
  if (score.words > 0) {
    line.more.set("scored_words", score.words).set("word_perplexity", score.word_perplexity());
  }
  if (score.bytes > 0) line.more.set("scored_bytes", score.bytes);
  if (score.shorter_than_asked()) line.more.set("longest_window", score.longest);
  if (!score.guesses.empty()) line.more.set("medusa", guess_shares(score.guesses));
  if (score.state_bytes > 0) {
    line.more.set("state_bytes", static_cast<int64_t>(score.state_bytes));
  }
}

// "; right guesses of the Medusa heads: 61.2 %, 45.0 %".
std::string guesses_text(const std::vector<GuessCounts>& guesses) {
  std::string text;
  for (const GuessCounts& head : guesses) {
    char share[32];
    std::snprintf(share, sizeof(share), "%.1f %%", 100 * head.share(0));
    text += concat(text.empty() ? "; right guesses of the Medusa heads: " : ", ", share);
  }
  return text;
}

std::string text(const Score& score) {
  std::ostringstream out;
  out << std::fixed << score.split << (score.scored.streaming ? " in " : " at ")
      << score.scored.text(true) << " (" << score.mode;
  if (score.shorter_than_asked()) out << ", of at most " << score.longest << " tokens";
  out << "): perplexity " << readable(score.perplexity()) << " per token";
  if (score.words > 0) out << ", " << readable(score.word_perplexity()) << " per word";
  if (score.bytes > 0) {
    out << ", " << std::setprecision(4) << score.bits_per_byte() << " bits per byte";
  }
  out << "; " << score.tokens << " tokens in " << std::setprecision(1) << score.seconds << " s"
      << guesses_text(score.guesses) << score.dead_text();
  return out.str();
}

std::string progress_text(const Score& score) {
  return concat("evaluating ", score.split, score.scored.streaming ? " in " : " at ",
                score.scored.text(), ": ", score.tokens, " tokens, perplexity ",
                readable(score.perplexity()));
}

constexpr ScoreForm kScoreForm{"tokens", add_metrics, text, progress_text};

class LanguageModelTask final : public Task {
 public:
  LanguageModelTask(const Recipe& recipe, std::shared_ptr<const Tokenizer> tokenizer)
      : dataset_(recipe.data, std::move(tokenizer)),
        model_(recipe.model),
        seed_(static_cast<uint64_t>(recipe.seed)) {}

  TaskKind kind() const override { return TaskKind::language_model; }
  ModelSizes sizes() const override {
    return {dataset_.tokenizer()->vocabulary_size(), dataset_.config().context, 0};
  }
  int64_t examples_per_epoch() const override { return sampler().examples_per_epoch(); }
  int64_t tokens_per_example() const override { return dataset_.config().context; }
  Batch train_batch(int64_t first, int64_t count) const override {
    Batch batch = sampler().batch(first, count);
    add_bands(model_, sizes().vocabulary, batch);
    add_later_targets(model_.medusa.heads, batch);
    return batch;
  }
  Variable loss(const Transformer& model, const DeviceBatch& batch) const override {
    const Variable hidden = model.encode(batch.input, nullptr);
    const Variable own = model.token_head().loss(hidden, batch.array("targets"), batch.input);
    if (model.medusa() == nullptr) return own;
    return sum_of_losses({own, model.medusa()->loss(hidden, batch.array("later_targets"))});
  }
  std::string describe_loss() const override {
    const MedusaConfig& medusa = model_.medusa;
    return concat("cross-entropy of the next token, in nats",
                  medusa.heads == 0
                      ? std::string()
                      : concat(", and those of ", medusa.heads, " Medusa heads, of head k times ",
                               medusa.weight, "^k"));
  }
  bool is_sound(double loss) const override {
    double heads = 1;
    for (int64_t k = 1; k <= model_.medusa.heads; ++k) heads += model_.medusa.weight_of(k);
    return is_sound_loss(loss / heads, sizes().vocabulary);
  }
  void check_options(const Transformer& model, const ScoreOptions& options) const override {
    check_decoder_options(model, options, dataset_.config().context);
  }
  ScoringSet scoring_set(const ScoreOptions& options,
                         const ScoringProtocol& protocol) const override;
  void count(const Transformer& model, const Batch& batch, const DeviceBatch& on_device,
             ModelState* state, Counts& counts) const override;
  std::shared_ptr<const Tokenizer> tokenizer() const override { return dataset_.tokenizer(); }
  std::vector<Baseline> baselines(const ScoreOptions& options) const override;
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

  // Splits are read at first use, which changes nothing that a caller can see.
  mutable TextDataset dataset_;
  ModelConfig model_;
  mutable std::optional<LmSampler> sampler_;
  mutable int64_t left_out_ = 0;  // windows, until a warning told
  uint64_t seed_;
};

ScoringSet LanguageModelTask::scoring_set(const ScoreOptions& options,
                                          const ScoringProtocol& protocol) const {
  const int64_t context = protocol.context.value_or(dataset_.config().context);
  EvaluationOptions windows;
  windows.context = context;
  windows.stride = protocol.stride.value_or(0);
  windows.carry_state = protocol.carry_state;
  windows.cross_documents = dataset_.config().crosses_documents();
  windows.max_tokens = options.max_tokens.value_or(0);
  const auto all = std::make_shared<const EvaluationSet>(
      dataset_.split(options.split), dataset_.measure(), windows, options.batch);
  ScoringSet set;
  set.score.form = &kScoreForm;
  set.score.split = name_of(options.split);
  set.score.scored = {context, protocol.carry_state ? 0 : protocol.stride.value_or(context),
                      protocol.carry_state};
  set.score.mode = protocol.carry_state ? "streaming" : protocol.stride ? "overlapping" : "windows";
  set.score.guesses.resize(static_cast<size_t>(model_.medusa.heads));
  set.batches = all->batches();
  set.targets = all->target_count();
  std::tie(set.rows, set.length) = all->largest_batch();
  set.carries_state = protocol.carry_state;
  for (const Window& window : all->windows()) {
    set.score.longest = std::max(set.score.longest, window.length);
    if (!protocol.carry_state) continue;
    set.carried_positions = std::max(set.carried_positions, window.first_position + window.length);
  }
  set.batch = [all](int64_t index) { return all->batch(index); };
  set.texts = all;
  return set;
}

void LanguageModelTask::count(const Transformer& model, const Batch& batch,
                              const DeviceBatch& on_device, ModelState* state,
                              Counts& counts) const {
  const Variable hidden = model.encode(on_device.input, state);
  const Tensor losses = model.token_head().losses(hidden.value(), on_device.array("targets"));
  std::vector<double> each = losses.to_vector<double>();
  for (const double loss : each) counts.nll_sum += loss;
  if (counts.token_losses != nullptr) *counts.token_losses = std::move(each);
  if (model.medusa() != nullptr) {
    count_guesses(*model.medusa(), hidden.value(), batch, counts.guesses);
  }
  counts.tokens += batch.target_count;
  counts.bytes += batch.scored_bytes;
  counts.words += batch.scored_words;
}

std::vector<Baseline> LanguageModelTask::baselines(const ScoreOptions& options) const {
  const NgramBaselines ngrams =
      ngram_baselines(*dataset_.split(Split::train), *dataset_.split(options.split),
                      dataset_.measure(), tokenizer()->vocabulary_size(),
                      dataset_.config().crosses_documents(), options.max_tokens.value_or(0));
  return {{"unigram", ngrams.unigram.perplexity(), ngrams.unigram.bits_per_byte()},
          {"bigram", ngrams.bigram.perplexity(), ngrams.bigram.bits_per_byte()}};
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
  return std::make_unique<LanguageModelTask>(recipe, tokenizer);
}

void check_language_model(const Recipe& recipe, const Transformer& model) {
  require_listed(recipe.data, Split::train);
  check_line_ends(recipe.data);
  for (const ScoreOptions& options : scored_by_run(recipe.evaluate)) {
    check_decoder_options(model, options, recipe.data.context);
    require_listed(recipe.data, options.split);
  }
}

}  // namespace linnet
