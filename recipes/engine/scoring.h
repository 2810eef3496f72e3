// The scoring of a split: one loop for all kinds of tasks.
#pragma once

#include <vector>

#include "recipes/engine/job.h"
#include "recipes/engine/per_token.h"
#include "recipes/engine/task.h"

namespace linnet {

// Throws UsageError when options do not fit model or data, or memory cannot suffice, and Error when
// the split is missing: so that a run that cannot be evaluated is refused before it trains. A model
// without weights is not asked for memory.
void check_scoring(const Task& task, const Transformer& model, const ScoreOptions& options);

// Scores the batch of the most tokens of each set, and returns nothing: what it does is to need as
// much memory as score() does.
void score_largest(const Task& task, const Transformer& model, const ScoreOptions& options);

// Scores a split without recording: one score per protocol. Throws as check_scoring() does;
// between batches is an interruption point. With `per_token`, the loss of every token goes to that
// file; throws UsageError for tasks other than language models on texts, and for several
// protocols. Several processes share the batches, or where state is carried the streams of
// documents, and all return the whole score; none of them writes losses per token.
std::vector<Score> score(const Task& task, const Transformer& model, const ScoreOptions& options,
                         const PerTokenRequest* per_token = nullptr, Job& job = alone());

}  // namespace linnet
