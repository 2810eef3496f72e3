#include "recipes/engine/scoring.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>
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

// `sizes`: of the counts by class, of each rank; one without examples has none.
void sum_confusion(Job& job, std::span<const double> sizes, Score& score) {
  const double size = *std::max_element(sizes.begin(), sizes.end());
  if (size == 0) return;
  score.confusion.resize(static_cast<size_t>(size));
  std::vector<double> sums(score.confusion.begin(), score.confusion.end());
  job.sum(sums);
  std::transform(sums.begin(), sums.end(), score.confusion.begin(),
                 [](double sum) { return std::llround(sum); });
}

// The values of a regression, of the ranks in their order. `counts`: how many each has.
void gather_values(Job& job, std::span<const double> counts, Score& score) {
  const auto own = counts.begin() + job.rank();
  const auto first = std::llround(std::accumulate(counts.begin(), own, 0.0));
  const auto all = std::llround(std::accumulate(own, counts.end(), static_cast<double>(first)));
  if (all == 0) return;
  const Tensor values = Tensor::zeros({all, 2}, DType::f64);
  double* to = values.data<double>() + 2 * first;
  for (const auto& [predicted, given] : score.values) {
    *to++ = predicted;
    *to++ = given;
  }
  job.ranks().all_reduce_sum(values);
  score.values.resize(static_cast<size_t>(all));
  const double* from = values.data<double>();
  for (auto& [predicted, given] : score.values) {
    predicted = *from++;
    given = *from++;
  }
}

// What all ranks counted. Throws Interrupted on all of them where one gave up.
void sum_over_ranks(Job& job, bool gave_up, Score& score) {
  const auto rank = static_cast<size_t>(job.rank()), size = static_cast<size_t>(job.size());
  std::vector<double> sums = {gave_up ? 1.0 : 0.0,
                              score.nll_sum,
                              static_cast<double>(score.tokens),
                              static_cast<double>(score.words),
                              static_cast<double>(score.bytes),
                              static_cast<double>(score.correct)};
  const size_t classes = sums.size(), values = classes + size;
  sums.resize(values + size);
  sums[classes + rank] = static_cast<double>(score.confusion.size());
  sums[values + rank] = static_cast<double>(score.values.size());
  const size_t states = sums.size();
  sums.resize(states + size);
  sums[states + rank] = static_cast<double>(score.state_bytes);
  const size_t guesses = sums.size();
  for (const GuessCounts& head : score.guesses) {
    sums.push_back(static_cast<double>(head.tokens));
    sums.insert(sums.end(), head.right.begin(), head.right.end());
  }
  job.sum(sums);
  if (sums[0] > 0) throw Interrupted();
  auto from = sums.begin() + static_cast<std::ptrdiff_t>(guesses);
  for (GuessCounts& head : score.guesses) {
    head.tokens = std::llround(*from++);
    for (int64_t& right : head.right) right = std::llround(*from++);
  }
  score.nll_sum = sums[1];
  score.tokens = std::llround(sums[2]);
  score.words = std::llround(sums[3]);
  score.bytes = std::llround(sums[4]);
  score.correct = std::llround(sums[5]);
  const std::span<const double> all = sums;
  const std::span<const double> state_bytes = all.subspan(states, size);
  score.state_bytes =
      static_cast<size_t>(*std::max_element(state_bytes.begin(), state_bytes.end()));
  sum_confusion(job, all.subspan(classes, size), score);
  gather_values(job, all.subspan(values, size), score);
}

// Counts the batches of this rank: every size-th one, or where state is carried, all that go on
// with every size-th state.
void count_batches(const Task& task, const Transformer& model, const ScoringSet& set,
                   const Job& job, Score& score,
                   const std::function<void(const Batch& batch)>& counted) {
  ModelState state;
  WorkProgress progress;
  int64_t turn = -1;
  for (int64_t i = 0; i < set.batches; ++i) {
    if (!set.carries_state && i % job.size() != job.rank()) continue;
    interruption_point();
    if (i > 0 && job.leads() && progress.due()) {
      progress.show(score.progress_text(), static_cast<double>(score.tokens),
                    static_cast<double>(set.targets) / job.size());
    }
    const Batch batch = set.batch(i);
    if (!batch.continues) {
      state = {};
      ++turn;
    }
    if (set.carries_state && turn % job.size() != job.rank()) continue;
    std::optional<DeadRowCount> dead;
    if (i == 0) dead.emplace();
    count_batch(task, model, set, batch, state, score);
    counted(batch);
    if (dead) score.dead_rows = dead->layers();
    if (set.carries_state) score.state_bytes = std::max(score.state_bytes, state.bytes());
  }
}

Score score_set(const Task& task, const Transformer& model, const ScoreOptions& options,
                const ScoringProtocol& protocol, const PerTokenRequest* per_token, Job& job) {
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
  bool gave_up = false;
  try {
    const Interruptible scoring;
    count_batches(task, model, set, job, score, [&](const Batch& batch) {
      if (file) file->add(batch, losses);
    });
  } catch (const Interrupted&) {
    if (job.is_alone()) throw;
    gave_up = true;  // the others wait for these counts
  }
  if (!job.is_alone()) sum_over_ranks(job, gave_up, score);
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
                         const PerTokenRequest* per_token, Job& job) {
  // Ranks give up together, which they do between batches alone: see score_set.
  std::optional<Interruptible> all_of_it;
  if (job.is_alone()) all_of_it.emplace();
  check_scoring(task, model, options);
  require_usage(per_token == nullptr || job.is_alone(), Cause{ErrorCode::conflict, "--per-token"},
                "a file of losses per token is written by one process, and these are ", job.size(),
                ": run 'linnet evaluate' by itself");
  require_usage(per_token == nullptr || options.protocols.size() == 1,
                Cause{ErrorCode::conflict, "--per-token"},
                "a file of losses per token holds those of one way to score: ask for one with "
                "--context, not ",
                options.protocols.size());
  const NoGrad off;
  std::vector<Score> scores;
  for (const ScoringProtocol& protocol : options.protocols) {
    scores.push_back(score_set(task, model, options, protocol, per_token, job));
  }
  return scores;
}

}  // namespace linnet
