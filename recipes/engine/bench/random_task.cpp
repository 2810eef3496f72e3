#include "recipes/engine/bench/random_task.h"

#include <algorithm>
#include <cmath>

#include "autograd/arithmetic.h"
#include "autograd/indexing.h"
#include "autograd/loss.h"
#include "core/random.h"
#include "recipes/engine/batch_bands.h"
#include "recipes/engine/make_task.h"

namespace linnet {
namespace {

class RandomTask final : public Task {
 public:
  RandomTask(const Recipe& recipe, const ModelSizes& sizes)
      : kind_(task_kind(recipe)),
        model_(recipe.model),
        rate_(recipe.task ? recipe.task->rate : 0),
        sizes_(sizes) {}

  TaskKind kind() const override { return kind_; }
  ModelSizes sizes() const override { return sizes_; }
  int64_t examples_per_epoch() const override { return int64_t{1} << 40; }
  int64_t tokens_per_example() const override { return sizes_.length; }
  Batch train_batch(int64_t first, int64_t count) const override;
  Variable loss(const Transformer& model, const DeviceBatch& batch) const override;
  std::string describe_loss() const override { return "of random tokens"; }
  bool is_sound(double) const override { return true; }
  void check_options(const Transformer&, const ScoreOptions&) const override {}
  ScoringSet scoring_set(const ScoreOptions&, const ScoringProtocol&) const override { return {}; }
  void count(const Transformer&, const Batch&, const DeviceBatch&, ModelState*,
             Counts&) const override {}
  std::shared_ptr<const Tokenizer> tokenizer() const override { return nullptr; }
  std::vector<Baseline> baselines(const ScoreOptions&) const override { return {}; }
  std::string fingerprint(Split) const override { return ""; }
  std::string describe() const override { return "random tokens"; }
  std::vector<std::string> take_warnings() override { return {}; }

 private:
  TaskKind kind_;
  ModelConfig model_;
  double rate_;  // of masked tokens
  ModelSizes sizes_;
};

Batch RandomTask::train_batch(int64_t first, int64_t count) const {
  const RandomKey key = RandomKey{1, 0, 0}.at("bench");
  const auto draw = [&](int64_t index, int64_t below) {
    return static_cast<int32_t>(
        key.below(static_cast<uint64_t>(index), static_cast<uint64_t>(below)));
  };
  Batch batch;
  batch.B = count;
  batch.T = sizes_.length;
  const int64_t tokens = count * sizes_.length, begin = first * sizes_.length;
  for (int64_t i = 0; i < tokens; ++i) {
    batch.tokens.push_back(draw(begin + i, sizes_.vocabulary));
    batch.positions.push_back(static_cast<int32_t>(i % sizes_.length));
  }
  for (int64_t i = 0; i < count; ++i) batch.example_ids.push_back(first + i);
  if (kind_ == TaskKind::classification) {
    for (int64_t i = 0; i < count; ++i) batch.labels.push_back(draw(first + i, sizes_.classes));
    batch.target_count = count;
    return batch;
  }
  if (kind_ == TaskKind::masked_language_model) {
    batch.place_of.assign(static_cast<size_t>(tokens), -1);
    const auto masked = std::max<int64_t>(1, std::llround(rate_ * static_cast<double>(tokens)));
    for (int64_t i = 0; i < masked; ++i) {
      const int64_t token = i * tokens / masked;
      batch.place_of[static_cast<size_t>(token)] = static_cast<int32_t>(i);
      batch.places.push_back(static_cast<int32_t>(token));
      batch.targets.push_back(draw(begin + token, sizes_.vocabulary));
    }
  } else {
    for (int64_t i = 1; i <= tokens; ++i) {
      batch.targets.push_back(draw(begin + i, sizes_.vocabulary));
    }
  }
  batch.target_count = std::ssize(batch.targets);
  if (kind_ == TaskKind::language_model) add_bands(model_, sizes_.vocabulary, batch);
  return batch;
}

Variable RandomTask::loss(const Transformer& model, const DeviceBatch& batch) const {
  if (kind_ == TaskKind::classification) {
    return cross_entropy(model.example_logits(batch.input), batch.array("labels"));
  }
  Variable x = model.encode(batch.input, nullptr);
  if (kind_ != TaskKind::masked_language_model) {
    return model.token_head().loss(x, batch.array("targets"), batch.input);
  }
  x = gather(reshape(x, {x.size(0) * x.size(1), x.size(2)}), batch.array("places"),
             batch.array("place_of"));
  return model.token_head().loss(x, batch.array("targets"));
}

}  // namespace

std::unique_ptr<Task> make_random_task(const Recipe& recipe, const ModelSizes& sizes) {
  require_task(recipe);
  return std::make_unique<RandomTask>(recipe, sizes);
}

}  // namespace linnet
