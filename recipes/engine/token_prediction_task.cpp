#include "recipes/engine/token_prediction_task.h"

#include <algorithm>
#include <cstdio>

#include "autograd/arithmetic.h"
#include "autograd/indexing.h"
#include "autograd/loss.h"
#include "data/sequences.h"
#include "layers/models.h"
#include "recipes/engine/soundness.h"

namespace linnet {
namespace {

// Logits held at a time when a batch is scored.
constexpr int64_t kChunkElements = int64_t{1} << 22;

void check_options_of(const Transformer& model, const ScoreOptions& options) {
  model.token_head();
  require_whole(options, "sequences");
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f %%", 100 * share);
  return text;
}

void add_metrics(const Score& score, EvaluationMetrics& line) {
  line.accuracy = score.accuracy();
  line.more.set("scored_tokens", score.tokens);
}

std::string text(const Score& score) {
  char loss[32];
  std::snprintf(loss, sizeof(loss), "%.4f", score.nll());
  return concat(score.split, ": accuracy ", percent(score.accuracy()), " of ", score.tokens,
                " tokens, loss ", loss, score.dead_text());
}

std::string progress_text(const Score& score) {
  return concat("evaluating ", score.split, ": ", score.tokens, " tokens, accuracy ",
                percent(score.accuracy()));
}

constexpr ScoreForm kScoreForm{"tokens", add_metrics, text, progress_text};

class TokenPredictionTask final : public Task {
 public:
  explicit TokenPredictionTask(const Recipe& recipe)
      : data_(make_sequences(recipe.data)),
        seed_(static_cast<uint64_t>(recipe.seed)),
        of_pairs_(kind_has_encoder(recipe.model.kind)) {}

  TaskKind kind() const override { return TaskKind::token_prediction; }
  ModelSizes sizes() const override { return {data_.vocabulary_size, data_.length, 0}; }
  int64_t examples_per_epoch() const override { return data_.size(Split::train); }
  int64_t tokens_per_example() const override { return data_.length; }
  Batch train_batch(int64_t first, int64_t count) const override {
    return for_model(training_batch(data_, seed_, first, count));
  }
  Variable loss(const Transformer& model, const DeviceBatch& batch) const override {
    return model.token_head().loss(model.encode(batch.input, nullptr), batch.array("targets"),
                                   batch.input);
  }
  std::string describe_loss() const override {
    return "cross-entropy of the token at each scored position, in nats";
  }
  bool is_sound(double loss) const override { return is_sound_loss(loss, data_.vocabulary_size); }
  void check_options(const Transformer& model, const ScoreOptions& options) const override {
    check_options_of(model, options);
  }
  ScoringSet scoring_set(const ScoreOptions& options, const ScoringProtocol&) const override;
  void count(const Transformer& model, const Batch& batch, const DeviceBatch& on_device,
             ModelState* state, Counts& counts) const override;
  std::shared_ptr<const Tokenizer> tokenizer() const override { return nullptr; }
  std::vector<Baseline> baselines(const ScoreOptions&) const override {
    throw UsageError(Cause{ErrorCode::conflict, "--baselines"},
                     "n-gram baselines are for texts; these are generated sequences");
  }
  std::string fingerprint(Split split) const override { return data_.fingerprint(split); }
  std::string describe() const override {
    return concat("data: ", data_.layout, ", ", examples_per_epoch(), " training sequences of ",
                  data_.length, " tokens, ", data_.scored, " of them scored, vocabulary of ",
                  data_.vocabulary_size);
  }
  std::vector<std::string> take_warnings() override { return {}; }

 private:
  Batch for_model(Batch batch) const {
    return of_pairs_ ? with_source(data_, batch) : std::move(batch);
  }

  SequenceDataset data_;
  uint64_t seed_;
  bool of_pairs_;  // for an encoder and a decoder
};

ScoringSet TokenPredictionTask::scoring_set(const ScoreOptions& options,
                                            const ScoringProtocol&) const {
  // Whole sequences, as few as hold evaluate.max_tokens.
  const int64_t all = data_.size(options.split);
  const int64_t asked = options.max_tokens ? (*options.max_tokens - 1) / data_.scored + 1 : all;
  const int64_t count = std::min(all, asked), at_once = options.batch;
  ScoringSet set;
  set.score.form = &kScoreForm;
  set.score.split = name_of(options.split);
  set.targets = count * data_.scored;
  set.batches = (count - 1) / at_once + 1;
  set.rows = std::min(at_once, count);
  set.length = data_.length;
  set.batch = [this, split = options.split, count, at_once](int64_t index) {
    const int64_t first = index * at_once;
    return for_model(batch_in_order(data_, split, first, std::min(at_once, count - first)));
  };
  return set;
}

void TokenPredictionTask::count(const Transformer& model, const Batch& batch,
                                const DeviceBatch& on_device, ModelState*, Counts& counts) const {
  std::vector<int32_t> places, targets;
  for (size_t i = 0; i < batch.targets.size(); ++i) {
    if (batch.targets[i] == kNotScored) continue;
    places.push_back(static_cast<int32_t>(i));
    targets.push_back(batch.targets[i]);
  }
  const Variable hidden =
      reshape(model.encode(on_device.input, nullptr), {batch.B * batch.T, model.config().width});
  const int64_t vocabulary = model.vocabulary(), scored = std::ssize(places);
  const int64_t at_once = std::max<int64_t>(1, kChunkElements / vocabulary);
  for (int64_t first = 0; first < scored; first += at_once) {
    const int64_t rows = std::min(at_once, scored - first);
    const auto chunk = [&](const std::vector<int32_t>& all) {
      return Tensor::from(std::vector<int32_t>(all.begin() + first, all.begin() + first + rows),
                          {rows}, model.device());
    };
    const Variable logits(model.token_head().logits(gather(hidden, chunk(places)).value()));
    const std::vector<float> values = logits.value().to_vector<float>();
    for (int64_t row = 0; row < rows; ++row) {
      const float* line = values.data() + row * vocabulary;
      const int64_t best = std::max_element(line, line + vocabulary) - line;
      counts.correct += best == targets[static_cast<size_t>(first + row)] ? 1 : 0;
    }
    counts.nll_sum += cross_entropy(logits, chunk(targets)).value().item();
  }
  counts.tokens += batch.target_count;
}

}  // namespace

std::unique_ptr<Task> make_token_prediction_task(const Recipe& recipe,
                                                 const std::shared_ptr<const Tokenizer>&) {
  return std::make_unique<TokenPredictionTask>(recipe);
}

void check_token_prediction(const Recipe& recipe, const Transformer& model) {
  if (kind_has_encoder(recipe.model.kind)) {
    require_usage(make_sequences(recipe.data).source > 0, Cause{ErrorCode::conflict, "data.kind"},
                  "the sequences of data.kind ", recipe.data.kind,
                  " have no part that an encoder could read: set model.kind=decoder, or "
                  "data.kind=copy");
    require_usage(recipe.model.decoder_start == 0,
                  Cause{ErrorCode::conflict, "model.decoder_start"},
                  "the decoder's part of generated sequences begins with 0, and "
                  "model.decoder_start is ",
                  recipe.model.decoder_start, ": leave it out");
  }
  for (const ScoreOptions& options : scored_by_run(recipe.evaluate)) {
    check_options_of(model, options);
  }
}

}  // namespace linnet
