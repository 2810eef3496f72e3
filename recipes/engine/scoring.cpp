#include "recipes/engine/scoring.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/interrupt.h"
#include "core/progress.h"
#include "recipes/engine/memory_need.h"

namespace linnet {
namespace {

void check_set(const ScoringSet& set, const Transformer& model) {
  require_scoring_memory(model, set.rows, set.length);
  const int64_t limit = model.length_limit();
  if (limit == 0 || set.carried_positions <= limit) return;
  throw UsageError({ErrorCode::out_of_range, "evaluate.carry_state"},
                   concat("carried state would go on to position ", set.carried_positions,
                          " of a document, but the model has only ", limit,
                          " positions: ", model.length_limit_reason(),
                          "; score windows instead, without carried state"));
}

void require_texts(const Task& task, const ScoringSet& set) {
  if (set.texts != nullptr) return;
  const bool classes = task.kind() == TaskKind::classification;
  throw UsageError(
      {ErrorCode::conflict, "--per-token"},
      concat("losses per token are of language models on texts, and this run's task "
             "is ",
             name_of(task.kind()),
             classes ? ": what it says of each example is in --predictions FILE" : ""));
}

// What the model makes of a batch of `set`.
void count_batch(const Task& task, const Transformer& model, const ScoringSet& set,
                 const Batch& batch, ModelState& state, Score& score) {
  DeviceBatch on_device(batch, model.device());
  // Positions follow from the carried state's length.
  if (set.carries_state) on_device.input.positions = {};
  task.count(model, batch, on_device, set.carries_state ? &state : nullptr, score);
}

Score score_set(const Task& task, const Transformer& model, const ScoreOptions& options,
                const ScoringProtocol& protocol, const PerTokenRequest* per_token) {
  const auto start = std::chrono::steady_clock::now();
  const ScoringSet set = task.scoring_set(options, protocol);
  Score score = set.score;
  std::optional<PerTokenFile> file;
  std::vector<double> losses;
  if (per_token != nullptr) {
    require_texts(task, set);
    PerTokenRequest request = *per_token;
    request.about["split"] = score.split;
    request.about["mode"] = score.mode;
    request.about["context"] = std::to_string(score.scored.length);
    request.about["stride"] = std::to_string(score.scored.stride);
    file.emplace(request, *set.texts);
    score.token_losses = &losses;
  }
  ModelState state;
  WorkProgress progress;
  for (int64_t i = 0; i < set.batches; ++i) {
    interruption_point();
    if (i > 0 && progress.due()) {
      progress.show(score.progress_text(), static_cast<double>(score.tokens),
                    static_cast<double>(set.targets));
    }
    const Batch batch = set.batch(i);
    if (!batch.continues) state = {};
    std::optional<DeadRowCount> dead;
    if (i == 0) dead.emplace();
    count_batch(task, model, set, batch, state, score);
    if (file) file->add(batch, losses);
    if (dead) score.dead_rows = dead->layers();
    if (set.carries_state) score.state_bytes = std::max(score.state_bytes, state.bytes());
  }
  if (file) file->commit();
  score.token_losses = nullptr;
  score.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return score;
}

}  // namespace

void check_scoring(const Task& task, const Transformer& model, const ScoreOptions& options) {
  task.check_options(model, options);
  for (const ScoringProtocol& protocol : options.protocols) {
    check_set(task.scoring_set(options, protocol), model);
  }
}

void score_largest(const Task& task, const Transformer& model, const ScoreOptions& options) {
  const NoGrad off;
  for (const ScoringProtocol& protocol : options.protocols) {
    const ScoringSet set = task.scoring_set(options, protocol);
    Batch largest = set.batch(0);
    for (int64_t i = 1; i < set.batches && largest.B * largest.T < set.rows * set.length; ++i) {
      interruption_point();
      Batch batch = set.batch(i);
      if (batch.B * batch.T > largest.B * largest.T) largest = std::move(batch);
    }
    Score counts = set.score;
    ModelState state;
    const DeadRowCount dead;
    count_batch(task, model, set, largest, state, counts);
  }
}

std::vector<Score> score(const Task& task, const Transformer& model, const ScoreOptions& options,
                         const PerTokenRequest* per_token) {
  check_scoring(task, model, options);
  require_usage(per_token == nullptr || options.protocols.size() == 1,
                Cause{ErrorCode::conflict, "--per-token"},
                "a file of losses per token holds those of one way to score: ask for one with "
                "--context, not ",
                options.protocols.size());
  const NoGrad off;
  std::vector<Score> scores;
  for (const ScoringProtocol& protocol : options.protocols) {
    scores.push_back(score_set(task, model, options, protocol, per_token));
  }
  return scores;
}

}  // namespace linnet
